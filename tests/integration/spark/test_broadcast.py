"""Broadcasts written and read by Spark's tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_client import Broadcast, Copies, ShuffleClient
from tests.support.broadcast_copies import hosts_of
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ShuffleClient]:
    server = ServerProcess.start(http_port=0)
    with ShuffleClient(server.location, copies=Copies((str(tmp_path),))) as found:
        yield found
    assert list(tmp_path.glob("*/*.arrows")) == [], "a closed client leaves no file on its host"
    server.terminate()
    server.close()


@pytest.fixture
def planes(spark: SparkSession) -> DataFrame:
    return spark.range(0, 5000, 1, 7).selectExpr(
        "id", "concat('N', id) as tail", "cast(id % 9 as int) as seats"
    )


def paths(shared: Broadcast) -> list[Path]:
    (base,) = shared._content.copies.dirs or ()
    return list(Path(base).glob(f"*/{shared._content.key}.arrows"))


def look_up(shared: Broadcast) -> Any:
    """A stage that replaces each id by the seats of its plane, and says which file it read."""

    def fn(batches: Iterator[Any]) -> Iterator[Any]:
        table = shared.table()
        (path,) = paths(shared)
        for batch in batches:
            seats = table.column("seats").take(batch.column("id")).combine_chunks()
            size = len(batch)
            yield pa.record_batch(
                {
                    "id": batch.column("id"),
                    "seats": seats,
                    "inode": pa.array([path.stat().st_ino] * size, pa.int64()),
                    "process": pa.array([os.getpid()] * size, pa.int64()),
                }
            )

    return fn


DDL = "id long, seats int, inode long, process long"


def test_a_frame_without_partitions_is_a_broadcast_without_rows(
    client: ShuffleClient, spark: SparkSession
) -> None:
    """No task writes it."""
    none = spark.createDataFrame(spark.sparkContext.emptyRDD(), "id long, tail string")
    assert none.rdd.getNumPartitions() == 0
    pipeline = client.pipeline(none).mapInArrow(iter, none.schema)
    for shared in (client.broadcast(none), client.broadcast(pipeline)):
        assert shared.rows == 0
        assert shared.table().schema.names == ["id", "tail"]
        ids = client.pipeline(spark.range(10)).join(shared, on="id", how="anti")
        assert ids.count() == 10
        shared.destroy()
    assert client.datasets() == []


def test_executors_write_it_in_the_frames_own_order_and_the_driver_reads_nothing(
    client: ShuffleClient, planes: DataFrame
) -> None:
    shared = client.broadcast(planes, name="planes")
    assert client.statistics()["gets"] == 0
    assert shared.rows == 5000
    assert {column.num_chunks for column in shared.table().columns} == {1}, "seven tasks wrote them"
    assert shared.table()["seats"].chunk(0).to_numpy(zero_copy_only=True)[4999] == 4999 % 9
    assert shared.table().equals(planes.toArrow())
    assert paths(shared) != []
    shared.destroy()
    assert paths(shared) == []


def test_all_tasks_of_a_host_share_one_file(
    client: ShuffleClient, spark: SparkSession, planes: DataFrame
) -> None:
    shared = client.broadcast(planes)
    rows = spark.range(0, 5000, 1, 6).mapInArrow(look_up(shared), DDL).collect()
    assert {(row.id, row.seats) for row in rows} == {(number, number % 9) for number in range(5000)}
    assert len({row.inode for row in rows}) == 1
    assert client.statistics()["gets"] == 1
    assert len(hosts_of(shared)[0]) == 1
    shared.unpersist()
    assert paths(shared) == []
    assert len(spark.range(0, 10, 1, 2).mapInArrow(look_up(shared), DDL).collect()) == 10


@pytest.mark.parametrize("in_driver", [False, True])
def test_a_pipelines_last_job_writes_it(
    client: ShuffleClient, spark: SparkSession, planes: DataFrame, *, in_driver: bool
) -> None:
    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    pipeline = client.pipeline(planes).repartition(3, "seats")
    # The driver runs no function of a user's.
    pipeline = pipeline if in_driver else pipeline.mapInArrow(same, planes.schema)
    pipeline = pipeline.filter(pc.field("seats") < 4)
    shared = client.broadcast(pipeline, name="planes")
    assert {column.num_chunks for column in shared.table().columns} == {1}
    expected = planes.filter("seats < 4").toArrow()
    assert shared.table().sort_by("id").equals(expected.sort_by("id"))
    assert shared.struct == planes.schema
    joined = client.pipeline(planes.select("id")).join(shared, on="id")
    assert joined.count() == shared.rows == expected.num_rows
    nothing = client.broadcast(pipeline.filter(pc.field("seats") < 0))
    assert nothing.table().equals(expected.schema.empty_table())
    for each in (shared, nothing):
        each.destroy()
    assert client.datasets() == []


def test_a_frame_that_cannot_be_computed_leaves_no_dataset(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def broken(batches: Iterator[Any]) -> Iterator[Any]:
        raise ValueError("the function is broken")
        yield from batches

    with pytest.raises(Exception, match="the function is broken"):
        client.broadcast(spark.range(5).mapInArrow(broken, "id long"))
    assert client.datasets() == []
