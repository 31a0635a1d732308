"""What becomes of a pipeline's results: kept, released, and named in errors when they are gone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest, Unavailable
from spark_client import Pipeline, ShuffleClient, Timeouts
from spark_client.connection import EmbeddedEnded, RemoteServer
from spark_client.jobs import PersistedDataset
from spark_client.jobs.results import Results
from spark_client.jobs.session_facts import explained
from spark_client.pipeline import finishing
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ShuffleClient]:
    with ShuffleClient(server.location) as found:
        yield found
    with ShuffleClient(server.location) as after:
        for name in (each.name for each in after.datasets()):
            after.drop(name)


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def test_a_pipeline_that_has_succeeded_does_not_fail_when_a_used_up_dataset_cannot_be_dropped(
    client: ShuffleClient, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = RemoteServer.action

    def refusing(server: RemoteServer, name: str, *how: Any, **named: Any) -> Any:
        if name == "drop":
            raise Unavailable("the server cannot be asked to drop anything")
        return action(server, name, *how, **named)

    pipeline = (
        client.pipeline(spark.range(100))
        .repartition(2, "id")
        .mapInArrow(same, "id long")
        .repartition(3, "id")
    )
    with monkeypatch.context() as patch:
        patch.setattr(RemoteServer, "action", refusing)
        df = pipeline.toDF()
    assert df.count() == 100


def test_release_takes_what_was_derived_and_drops_all_that_it_reads(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def result(number: int) -> DataFrame:
        return client.pipeline(spark.range(number, number + 3)).repartition(2, "id").toDF()

    left, right, other, cached = (result(number) for number in range(4))
    joined = left.join(right, "id").groupBy().count()
    assert joined.collect() == [(2,)]
    cached.cache().createOrReplaceTempView("cached")
    assert len(client.datasets("exchange/")) == 4
    client.release(joined)
    assert len(client.datasets("exchange/")) == 2
    client.release(spark.table("cached").limit(0))
    assert len(client.datasets("exchange/")) == 1
    assert other.count() == 3
    for released in (joined, left, spark.range(3)):
        with pytest.raises(InvalidRequest, match="reads no pipeline's result, or what it reads was released"):
            client.release(released)
    with pytest.raises(
        Exception, match="reads is gone: it was released, or its client closed; run the pipeline"
    ):
        left.collect()
    spark.catalog.dropTempView("cached")


def test_a_persisted_dataset_ends_with_its_pipelines_and_with_the_frames_that_were_made_of_it(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def pipeline() -> Pipeline:
        found: Pipeline = client.pipeline(spark.range(3)).repartition(1).persist()
        return found

    def left() -> int:
        gc.collect()
        return len(client.datasets("exchange/"))

    kept = pipeline()
    assert kept.count() == 3
    reader = kept.toLocalIterator()
    derived = kept.mapInArrow(same, "id long")
    del kept
    assert derived.count() == 3
    del derived
    assert left() == 1, "the reader has it"
    assert reader.read_all().num_rows == 3
    del reader
    eventually(left, 0)

    kept = pipeline()
    frames = [kept.toDF().filter("id > 0") for _ in range(2)]
    client.release(frames[0])
    assert left() == 1, "other plans may read it"
    frames.append(kept.toDF())
    del kept
    assert frames[2].count() == 3
    client.release(frames[2])
    assert left() == 0

    kept = pipeline()
    with client.scope():
        df = kept.toDF()
        del kept
        assert left() == 1
        assert df.count() == 3
    eventually(left, 0)
    with client._owned().loop.machine() as machine:
        assert not machine.datasets


def test_an_exchange_that_was_unpersisted_while_a_run_waited_for_it_ends_with_the_run(
    client: ShuffleClient, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanged = client.pipeline(spark.range(100)).repartition(2, "id")
    claim = PersistedDataset.claim

    def claimed_after(persisted: PersistedDataset, run: object) -> Any:
        monkeypatch.setattr(PersistedDataset, "claim", claim)
        exchanged.unpersist()
        return claim(persisted, run)

    runs: list[Callable[[], object]] = [
        exchanged.toArrow,
        lambda: client.release(exchanged.toDF()),
        exchanged.count,
        lambda: exchanged.repartition(2).toArrow(),
    ]
    for run in runs:
        exchanged.persist()
        monkeypatch.setattr(PersistedDataset, "claim", claimed_after)
        run()
        assert PersistedDataset.claim is claim
        assert client.datasets() == []


@pytest.mark.parametrize(
    ("place", "kept"),
    [
        ((PersistedDataset, "claim"), 0),
        ((Results, "hold"), 1),
        ((Results, "add_frame"), 1),
        ((finishing, "collected"), 1),
    ],
)
def test_a_ctrl_c_between_jobs_leaves_nothing_and_no_run_waits(
    client: ShuffleClient,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[Any, str],
    kept: int,
) -> None:
    exchanged = client.pipeline(spark.range(100)).repartition(2, "id").persist()
    after = exchanged.mapInArrow(same, "id long").repartition(2)
    called = getattr(*place)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        called(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(*place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        (after.toLocalIterator if place[1] == "collected" else after.toDF)()
    eventually(lambda: len(client.datasets("exchange/")), kept)
    with client._owned().loop.machine() as machine:
        assert len(machine.datasets) == kept
    exchanged.unpersist()
    assert client.datasets() == []


def test_a_frame_of_an_embedded_client_that_was_closed_says_so(spark: SparkSession) -> None:
    with ShuffleClient.embedded(timeouts=Timeouts(tries=1)) as closed:
        df = closed.pipeline(spark.range(3)).repartition(1).toDF()
        pipeline = closed.pipeline(spark.range(3)).repartition(1).persist()
        assert pipeline.count() == 3
        shared = closed.broadcast(pa.table({"x": [1]}))
    said = "is gone: its server was embedded in a ShuffleClient that was closed"
    with pytest.raises(Exception, match=f"EmbeddedEnded: partition 0 of dataset '.*' {said}"):
        df.collect()
    with pytest.raises(EmbeddedEnded, match=said):
        shared.table()
    with pytest.raises(InvalidRequest, match="the ShuffleClient of this pipeline is closed; make a new one"):
        pipeline.count()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_source_of_an_embedded_client_that_was_closed_says_so(spark: SparkSession, workers: int) -> None:
    session = spark.newSession()
    with ShuffleClient.embedded(workers=workers) as closed:
        closed.register(session)
        closed.put("countries", pa.table({"x": [1]}))
        assert session.read.format("flight").load("countries").count() == 1
    with pytest.raises(Exception, match="its server was embedded in a ShuffleClient that was closed"):
        session.read.format("flight").load("countries")


def test_a_thread_without_an_active_session_takes_the_clients_last_one_else_the_default_one(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def chosen() -> SparkSession:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: client._owned().sessions.choose(None, "scan")).result()

    stopped = mock.Mock(sparkContext=None)
    assert chosen() is spark
    other = spark.newSession()
    client.pipeline(other.range(1))
    assert chosen() is other
    client._owned().sessions.used(stopped)
    assert chosen() is spark


def test_a_frame_is_explained_without_the_programs_output(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    df = spark.range(7).where("id > 2")
    for mode in ("simple", "extended"):
        df.explain(mode)
        printed = capsys.readouterr().out
        with monkeypatch.context() as patch:
            # ``sys.stdout`` is that of all threads: what one puts back may be what another has put there.
            patch.setattr("sys.stdout", None)
            patch.setattr("builtins.print", lambda *_: pytest.fail("it prints"))
            assert explained(df, mode) + "\n" == printed
            assert sys.stdout is None
