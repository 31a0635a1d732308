"""Exchanges with two copies over several servers: a server that is lost, whenever, costs nothing that was written."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import InvalidRequest
from spark_client import ShuffleClient, Timeouts
from spark_client.jobs import Shuffles, Target
from spark_client.jobs.write_job import WriteJob
from tests.integration.spark.test_several_servers import expected, grouped, held, once, rows_of, used_bytes
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPARK_SETTINGS = {"master": "local[2,4]"}
"""A task that fails is tried again, as on a cluster."""
ROWS = 20_000
QUICK = Timeouts(call_seconds=5, stall_seconds=5, first_message_seconds=2, connect_seconds=2, tries=4)


@pytest.fixture
def servers() -> Iterator[list[ServerProcess]]:
    started = [ServerProcess.start() for _ in range(3)]
    yield started
    for server in started:
        server.close()


@pytest.fixture
def several(servers: list[ServerProcess]) -> Iterator[ShuffleClient]:
    """A client of three servers; once it is closed those that live hold nothing."""
    with ShuffleClient(",".join(server.location for server in servers), timeouts=QUICK) as found:
        yield found
    for server in servers:
        if server.returncode is None:
            with ShuffleClient(server.location) as after:
                eventually(partial(used_bytes, after), 0)
                assert not after.datasets()


def frames_of(spark: SparkSession, tasks: int = 6) -> Any:
    return spark.range(0, ROWS, numPartitions=tasks).selectExpr("id", "id % 97 AS k")


def losing(marker: Path, victim: int, *, first: bool) -> Callable[..., Any]:
    """A function that ends the server once, before or after it has given its rows on."""

    def lose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if first and once(marker):
            os.kill(victim, signal.SIGKILL)
        yield from batches
        if not first and once(marker):
            os.kill(victim, signal.SIGKILL)

    return lose


def test_each_row_is_on_two_servers_and_comes_once(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess]
) -> None:
    stored = []
    for copies in (1, 2):
        pipeline = several.pipeline(frames_of(spark)).exchange(8, "k", copies=copies)
        frame = pipeline.toDF()
        assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
        stored.append(sum(held(servers)))
        several.release(frame)
    assert 1.8 < stored[1] / stored[0] < 2.2
    assert pipeline.statistics is not None
    assert pipeline.statistics.exchanges[0].lacking == 0
    assert "exchange(8, 'k', copies=2)" in str(pipeline.statistics.exchanges[0].exchange)


def test_a_server_that_is_lost_between_two_exchanges_costs_no_rerun(
    spark: SparkSession,
    several: ShuffleClient,
    servers: list[ServerProcess],
    tmp_path: Path,
) -> None:
    df = frames_of(spark)
    lose = losing(tmp_path / "lost", servers[1].pid, first=True)
    first = several.pipeline(df).exchange(8, "id", copies=2).mapInArrow(lose, df.schema)
    pipeline = grouped(first.exchange(8, "k", copies=2))
    assert rows_of(pipeline.collect().read_all()) == expected()
    assert (tmp_path / "lost").exists()
    assert "run again: exchange(8, 'id'" not in str(pipeline.statistics)


def test_a_server_that_is_lost_while_tasks_write_costs_no_row(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], tmp_path: Path
) -> None:
    df = frames_of(spark, 12)
    lose = losing(tmp_path / "lost", servers[2].pid, first=False)
    pipeline = grouped(several.pipeline(df).mapInArrow(lose, df.schema).exchange(8, "k", copies=2))
    assert rows_of(pipeline.collect().read_all()) == expected()
    assert (tmp_path / "lost").exists()
    assert not pipeline.statistics.losses


def test_a_server_that_is_lost_before_the_seals_costs_a_copy_and_no_rerun(
    spark: SparkSession,
    several: ShuffleClient,
    servers: list[ServerProcess],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seal = WriteJob._sealed

    def losing_one(job: WriteJob, seals: Any) -> Any:
        servers[2].kill()
        return seal(job, seals)

    monkeypatch.setattr(WriteJob, "_sealed", losing_one)
    pipeline = several.pipeline(frames_of(spark)).exchange(8, "k", copies=2)
    frame = pipeline.toDF()
    assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
    assert pipeline.statistics is not None
    assert not pipeline.statistics.losses
    assert pipeline.statistics.exchanges[0].lacking == 2  # its own portion, and the one whose copy it had
    assert "2 of 3 portions have fewer" in caplog.text
    several.release(frame)


def test_what_todf_has_returned_is_read_on_when_a_server_is_lost_in_the_middle(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], tmp_path: Path
) -> None:
    df = frames_of(spark)
    frame = several.pipeline(df).exchange(4, "id", copies=2).toDF()
    lose = losing(tmp_path / "lost", servers[0].pid, first=False)
    assert sorted(row["id"] for row in frame.mapInArrow(lose, df.schema).collect()) == list(range(ROWS))
    assert (tmp_path / "lost").exists()
    # Any one of the others leads a stock client to all rows.
    with flight.connect(servers[1].location) as client:
        (name,) = {info.descriptor.path[0] for info in client.list_flights()}
        info = client.get_flight_info(flight.FlightDescriptor.for_path(name))
    found: list[int] = []
    for endpoint in info.endpoints:
        uris = [each.uri.decode() for each in endpoint.locations]
        uri = next(each for each in uris if each in (servers[1].location, servers[2].location))
        with flight.connect(uri) as client:
            found += client.do_get(endpoint.ticket).read_all()["id"].to_pylist()
    assert sorted(found) == list(range(ROWS))
    several.release(frame)


def test_a_persisted_exchange_of_two_copies_is_kept_when_a_server_is_lost(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = several.pipeline(frames_of(spark)).exchange(8, "k", copies=2).persist()
    assert rows_of(grouped(kept).collect().read_all()) == expected()
    servers[0].kill()
    written: list[int] = []
    write = Shuffles.write

    def noting(shuffles: Shuffles, targets: Sequence[Target], **how: Any) -> Any:
        written.extend(target.task.copies for target in targets)
        return write(shuffles, targets, **how)

    monkeypatch.setattr(Shuffles, "write", noting)
    assert rows_of(grouped(kept).collect().read_all()) == expected()
    assert written == [1], "only what follows it is written"
    kept.unpersist()


def test_with_one_living_server_each_row_is_once_there_and_the_statistics_say_so(
    spark: SparkSession, servers: list[ServerProcess], caplog: pytest.LogCaptureFixture
) -> None:
    servers[1].kill()
    with ShuffleClient(f"{servers[0].location},{servers[1].location}", timeouts=QUICK) as client:
        pipeline = client.pipeline(frames_of(spark)).exchange(1, copies=2)
        assert pipeline.collect().read_all()["id"].to_pylist() == [*range(ROWS)]
        assert pipeline.statistics is not None
        assert pipeline.statistics.exchanges[0].lacking == 1
    assert "1 of 1 portions have fewer" in caplog.text


def test_one_partition_has_a_copy_in_the_same_order(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess]
) -> None:
    kept = several.pipeline(frames_of(spark)).exchange(1, copies=2).persist()
    assert kept.collect().read_all()["id"].to_pylist() == [*range(ROWS)]
    servers[held(servers).index(max(held(servers)))].kill()
    assert kept.collect().read_all()["id"].to_pylist() == [*range(ROWS)]


def test_two_copies_need_two_servers(spark: SparkSession, servers: list[ServerProcess]) -> None:
    with ShuffleClient(servers[0].location) as client:
        df = client.pipeline(spark.range(10))
        with pytest.raises(InvalidRequest, match=r"copies=2 needs two servers, and this client has one"):
            df.exchange(2, copies=2)
        for copies in (0, 3):
            with pytest.raises(InvalidRequest, match="copies is 1 or 2"):
                df.exchange(2, copies=copies)
        assert df.exchange(2, copies=1).count() == 10
