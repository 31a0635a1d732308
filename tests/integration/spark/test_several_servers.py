"""Exchanges over several servers: the same rows, and a run that goes on when one of them is lost."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from flight_server.protocol import NotFound, ServerLost
from spark_client import Reading, ShuffleClient, Timeouts
from tests.support.failing_tasks import kills_first
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spread import everything, spread
from tests.support.sums import ROWS, expected, grouped, numbered, sums_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def servers() -> Iterator[list[ServerProcess]]:
    started = [ServerProcess.start() for _ in range(3)]
    yield started
    for server in started:
        server.close()


@pytest.fixture
def several(servers: list[ServerProcess]) -> Iterator[ShuffleClient]:
    """A client of three servers, which waits a short time for a killed one; once it is closed those that live hold
    nothing.
    """
    location = ",".join(server.location for server in servers)
    with ShuffleClient(location, timeouts=Timeouts(connect_seconds=2)) as connected:
        yield connected
    for server in servers:
        if server.returncode is None:
            with ShuffleClient(server.location) as after:
                eventually(partial(used_bytes, after), 0)
                assert not after.datasets()


def used_bytes(client: ShuffleClient) -> int:
    return int(client.statistics()["memory"]["used_bytes"])


def held(servers: list[ServerProcess]) -> list[int]:
    """The bytes that each server holds."""
    found = []
    for server in servers:
        with ShuffleClient(server.location) as client:
            found.append(used_bytes(client))
    return found


def test_rows_are_spread_over_all_servers_and_come_once(
    spark: SparkSession,
    several: ShuffleClient,
    servers: list[ServerProcess],
    capsys: pytest.CaptureFixture[str],
) -> None:
    df = numbered(spark)
    sealed = grouped(several.pipeline(df).repartition(8, "k"))
    frame = several.pipeline(df).repartition(8, "k").toDF()
    assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
    assert all(held(servers)), "each server has a portion"
    several.release(frame)
    assert sums_of(sealed.toArrow()) == expected()
    held_by = sealed.statistics().exchanges[0].servers
    assert held_by.keys() == {server.location for server in servers}
    assert sum(held_by.values()) == sealed.statistics().exchanges[0].size_bytes
    sealed.explain()
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "on 3 servers: grpc://" in each]
    assert all(location in line for location in held_by)
    assert sealed.count() == 97


def test_one_partition_is_on_one_server_in_the_order_of_the_tasks(
    spark: SparkSession, several: ShuffleClient
) -> None:
    df = spark.range(0, ROWS, numPartitions=9)
    assert several.collect(df).read_all()["id"].to_pylist() == [*range(ROWS)]
    one, many = several.pipeline(df).repartition(1), several.pipeline(df).repartition(5)
    pair = one.union(many).toArrow()["id"].to_pylist()
    assert pair[:ROWS] == [*range(ROWS)]
    assert sorted(pair[ROWS:]) == [*range(ROWS)]


def test_the_data_source_reads_all_portions_of_a_spread_dataset(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess]
) -> None:
    several.register(spark)
    spread("wide", servers)
    location = servers[1].location
    rows = spark.read.format("flight").option("location", location).load("wide")
    assert sorted(row["n"] for row in rows.collect()) == everything(3)
    stream = spark.readStream.format("flight").option("location", location).load("wide")
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="is an exchange over several servers"):
        query.awaitTermination()
    several.drop("wide")


def test_a_server_that_is_lost_between_two_exchanges_costs_a_rerun(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], tmp_path: Path
) -> None:
    marker = tmp_path / "killed"
    kill = kills_first(marker, servers[1].pid)
    df = numbered(spark)
    pipeline = grouped(
        several.pipeline(df).repartition(8, "id").mapInArrow(kill, df.schema).repartition(8, "k")
    )
    assert sums_of(pipeline.toArrow()) == expected()
    assert marker.exists()
    assert len(pipeline.statistics().losses) == 1
    assert "run again: repartition(8, 'id')" in str(pipeline.statistics())
    # The next run does not ask the lost server first.
    assert sums_of(pipeline.toArrow()) == expected()
    assert not pipeline.statistics().losses


READS: dict[str, Callable[[Any, ShuffleClient], int]] = {
    "count of a persisted exchange": lambda rows, _: rows.repartition(8, "k").persist().count(),
    "count": lambda rows, _: rows.count(),
    "collect": lambda rows, _: rows.toArrow().num_rows,
    "toDF": lambda rows, _: rows.repartition(4, "k").toDF().count(),
    "broadcast": lambda rows, client: client.broadcast(rows).rows,
    "a sample": lambda rows, _: rows.repartitionByRange(4, "id").toDF().count(),
}


@pytest.mark.parametrize(
    "read",
    [pytest.param(name, marks=[pytest.mark.long] if number else []) for number, name in enumerate(READS)],
)
def test_a_persisted_exchange_that_is_lost_while_it_is_read_is_written_again(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], tmp_path: Path, read: str
) -> None:
    marker = tmp_path / "killed"
    kill = kills_first(marker, servers[1].pid)
    df = numbered(spark)
    kept = several.pipeline(df).repartition(8, "id").persist()
    assert kept.count() == ROWS
    assert not marker.exists()
    assert READS[read](kept.mapInArrow(kill, df.schema), several) == ROWS
    assert marker.exists()


def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each row with a name that it has in this run only."""
    for batch in batches:
        yield batch.append_column("name", pa.array([uuid.uuid4().hex for _ in range(batch.num_rows)]))


def test_rows_of_two_runs_of_an_exchange_do_not_meet(
    spark: SparkSession,
    several: ShuffleClient,
    servers: list[ServerProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = several.pipeline(spark.range(0, 500, numPartitions=6)).mapInArrow(named, "id long, name string")
    first = first.repartition(6)
    second = first.repartition(1).select("name", other="id")  # on one server
    joined = first.join(second, on="name", numPartitions=4).repartition(3)
    shuffles: Any = several._owned()
    write, killed = shuffles.write, list[int]()

    def killing(targets: Any, *how: Any, **named: Any) -> Any:
        written = write(targets, *how, **named)
        source = written[0].source
        if len(written[0].partition_bytes) == 1 and not killed:
            other = next(each for each in servers if each.location != source.server.location)
            killed.append(other.kill())
        return written

    monkeypatch.setattr(shuffles, "write", killing)
    table = joined.toArrow()
    assert killed
    assert sorted(table["id"].to_pylist()) == [*range(500)]
    assert table["id"].to_pylist() == table["other"].to_pylist()
    # Of repartition(1), or, where the join holds it already, of that.
    assert ", what it was made of was written again" in str(joined.statistics())


@pytest.mark.long
def test_a_server_that_is_started_again_is_another_one_and_is_used_again(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess]
) -> None:
    df = numbered(spark)
    kept = several.pipeline(df).repartition(8, "k").persist()
    assert sums_of(grouped(kept).toArrow()) == expected()
    servers[0] = servers[0].restart()
    assert sums_of(grouped(kept).toArrow()) == expected(), "the persisted exchange is written again"
    assert all(held(servers))
    kept.unpersist()


def test_what_todf_has_returned_is_an_error_that_names_the_lost_server(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess]
) -> None:
    df = spark.range(0, ROWS, numPartitions=6)
    frame = several.pipeline(df).repartition(8, "id").toDF()
    servers[1].kill()
    with pytest.raises(Exception, match="ServerLost") as failed:
        frame.count()
    assert servers[1].location in str(failed.value)


@pytest.mark.long
def test_a_loss_before_the_first_row_was_collected_costs_a_rerun_and_later_an_error(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess]
) -> None:
    df = spark.range(0, ROWS, numPartitions=6)
    pipeline = several.pipeline(df).repartition(48, "id")
    reader = pipeline.toLocalIterator()
    servers[1].kill()
    assert sorted(reader.read_all()["id"].to_pylist()) == list(range(ROWS))
    assert len(pipeline.statistics().losses) == 1
    # Most rows wait at the servers, because the reader may hold few of them.
    with ShuffleClient(
        f"{servers[0].location},{servers[2].location}", reading=Reading(budget_bytes=1 << 20)
    ) as sparing:
        many = spark.range(0, 4_000_000, numPartitions=6)
        reader = sparing.pipeline(many).repartition(48, "id").toLocalIterator()
        assert reader.read_next_batch().num_rows
        servers[0].kill()
        with pytest.raises(ServerLost, match="was on a server that is gone, or was started again"):
            reader.read_all()


def test_what_was_released_is_not_run_again(spark: SparkSession, several: ShuffleClient) -> None:
    with several.scope():
        reader = several.pipeline(spark.range(100)).repartition(4, "id").toLocalIterator()
    with pytest.raises(NotFound):
        reader.read_all()
