"""Exchanges that are kept in shared storage, too, and read on when their servers are gone."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from flight_server.protocol import Forbidden, InvalidRequest, Unavailable
from spark_client import ShuffleClient, Timeouts
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 20_000
QUICK = Timeouts(tries=1, connect_seconds=2)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """The prefix of all servers; at the end nothing is below it."""
    found = tmp_path / "shared"
    found.mkdir()
    yield found
    assert not [*found.rglob("*")]


@pytest.fixture
def servers(shared: Path) -> Iterator[list[ServerProcess]]:
    started = [ServerProcess.start(offload_to=shared) for _ in range(2)]
    yield started
    for server in started:
        server.close()


@pytest.fixture
def several(servers: list[ServerProcess]) -> Iterator[ShuffleClient]:
    with ShuffleClient(",".join(server.location for server in servers), timeouts=QUICK) as found:
        yield found


@pytest.fixture
def one(servers: list[ServerProcess]) -> Iterator[ShuffleClient]:
    with ShuffleClient(servers[0].location, timeouts=QUICK) as found:
        yield found


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, numPartitions=6).selectExpr("id", "id % 97 AS k")


def objects(shared: Path) -> int:
    return sum(1 for path in shared.rglob("*.arrows"))


def ids(table: Any) -> list[int]:
    return sorted(table["id"].to_pylist())


def test_a_frame_reads_on_when_all_servers_are_killed(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], shared: Path
) -> None:
    frame = several.pipeline(rows(spark)).exchange(8, "k", offload=shared).toDF()
    other = several.pipeline(rows(spark)).exchange(8, "k", offload=f"file://{shared}/mine").toDF()
    assert objects(shared) == 4
    servers[1].kill()
    assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
    servers[0].kill()
    assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
    assert frame.join(other, "id").count() == ROWS
    several.release(frame)
    assert objects(shared) == 2
    several.release(other)
    (shared / "mine").rmdir()


def test_the_same_with_one_server(
    spark: SparkSession, one: ShuffleClient, servers: list[ServerProcess], shared: Path
) -> None:
    pipeline = one.pipeline(rows(spark)).exchange(8, "k", offload=shared)
    frame, single = pipeline.toDF(), one.pipeline(rows(spark)).exchange(1, offload=shared).toDF()
    servers[0].kill()
    assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
    assert [row["id"] for row in single.collect()] == list(range(ROWS)), "in the order of the tasks"


def test_collect_and_a_join_read_on(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], shared: Path
) -> None:
    kept = several.pipeline(rows(spark)).exchange(8, "k", offload=shared).persist()
    names = several.pipeline(spark.range(0, 97).selectExpr("id AS k", "id * 2 AS v"))
    named = names.exchange(8, "k", offload=shared).persist()
    reader, joined = kept.collect(), kept.join(named, on="k").toDF()
    servers[1].kill()
    assert ids(reader.read_all()) == list(range(ROWS))
    assert sorted((row["id"], row["v"]) for row in joined.collect()) == [
        (number, number % 97 * 2) for number in range(ROWS)
    ]
    assert kept.count() == ROWS, "what is in objects is not written again"
    several.release(joined)
    kept.unpersist()
    named.unpersist()


def once(path: Path) -> bool:
    """Whether this is the first call for the path, over all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def test_a_server_that_is_lost_between_two_exchanges_is_read_from_its_object(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], shared: Path, tmp_path: Path
) -> None:
    marker, victim, counted = tmp_path / "killed", servers[1].pid, tmp_path / "first"

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if once(marker):
                os.kill(victim, signal.SIGKILL)
            yield batch

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with counted.open("a") as file:
            file.write("x")
        yield from batches

    df = rows(spark)
    first = several.pipeline(df).mapInArrow(count, df.schema).exchange(8, "id", offload=shared)
    pipeline = first.mapInArrow(kill, df.schema).exchange(8, "k")
    assert ids(pipeline.collect().read_all()) == list(range(ROWS))
    assert marker.exists()
    assert len(counted.read_text()) == 6, "the first exchange ran once"


def test_a_prefix_that_servers_may_not_write_to_is_refused(
    spark: SparkSession, several: ShuffleClient, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.touch()
        yield from batches

    df = rows(spark)
    pipeline = several.pipeline(df).mapInArrow(note, df.schema)
    with pytest.raises(Forbidden, match=r"may write below file://.*shared"):
        pipeline.exchange(4, "k", offload=tmp_path / "other").toDF()
    assert not ran.exists(), "no task has begun"
    with pytest.raises(InvalidRequest, match=r"exchange\(4, 'k'\): offload is a directory's absolute path"):
        pipeline.exchange(4, "k", offload="relative")
    assert not several.datasets()


def test_a_seal_that_cannot_write_its_object_says_why(
    spark: SparkSession, several: ShuffleClient, shared: Path
) -> None:
    (shared / "mine").write_text("a file, where the directory is to be")
    with pytest.raises(Unavailable, match=r"could not be offloaded to file://.*/mine/.*Not a directory"):
        several.pipeline(rows(spark)).exchange(4, "k", offload=shared / "mine").toDF()
    assert not several.datasets()
    (shared / "mine").unlink()


def test_a_damaged_object_is_an_error_that_names_it(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], shared: Path
) -> None:
    frame = several.pipeline(rows(spark)).exchange(8, "k", offload=shared).toDF()
    for each in shared.rglob("*.arrows"):
        data = bytearray(each.read_bytes())
        data[len(data) // 2] ^= 1
        each.write_bytes(data)
    servers[0].kill()
    with pytest.raises(
        Exception, match=r"PartitionFailed.*the object file://.*\.arrows of dataset .* is damaged"
    ):
        frame.collect()


def test_an_embedded_server_writes_where_its_client_says(
    spark: SparkSession, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with ShuffleClient.embedded(offload_to=shared, timeouts=QUICK) as client:
        frame = client.pipeline(rows(spark)).exchange(8, "k", offload=shared).toDF()
        assert client._embedded is not None
        os.kill(client._embedded.pid, signal.SIGKILL)
        assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
        client.release(frame)
