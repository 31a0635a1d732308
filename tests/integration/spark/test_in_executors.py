"""Clients of servers in executors, on a real standalone cluster of two workers, with nothing else configured."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from flight_server.protocol import FlightShuffleError, InvalidRequest
from spark_client import ShuffleClient, Timeouts
from spark_client.connection import RemoteServer
from tests.support.executor_processes import servers_of
from tests.support.processes import wait_for_end
from tests.support.sums import ROWS, expected, grouped, numbered, sums_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"master": "cluster"}


@pytest.fixture
def client(spark: SparkSession) -> Iterator[ShuffleClient]:
    """A client; once it is closed no server of it is left, in whichever executor."""
    options: dict[str, Any] = {"memory_limit": "64MiB", "drain_grace_seconds": 0}
    with ShuffleClient.in_executors(spark, timeouts=Timeouts(tries=2), **options) as found:
        yield found
        pids = servers_of(found)
    wait_for_end(pids)


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So that one executor does not run all tasks."""
    time.sleep(0.3)
    yield from batches


def test_the_driver_writes_what_is_small_to_servers_that_tasks_have_started(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"k": range(100)}), tmp_path / "small.parquet")

    def tasks_of_a_run() -> list[int]:
        pipeline = client.scan(tmp_path / "small.parquet").repartition(3, "k").filter(pc.field("k") > 9)
        assert sorted(pipeline.toArrow()["k"].to_pylist()) == [*range(10, 100)]
        tasks = [each.tasks for each in pipeline.statistics().exchanges]
        assert pipeline.count() == 90
        return tasks

    assert tasks_of_a_run() == [1], "no server was there"
    assert tasks_of_a_run() == [0]


def test_what_a_failed_job_has_left_on_servers_that_the_driver_does_not_know_is_dropped_by_the_next_tasks(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    executors = client._executors
    assert executors is not None

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        with closing(RemoteServer(executors.here().location, token=executors.token, direct=True)) as server:
            datasets = [*server.action("statistics")["datasets"]]
        (tmp_path / str(context.taskAttemptId())).write_text("\n".join(datasets))
        yield from batches
        if context.partitionId() == 3:
            raise ValueError("of the user")

    def run() -> list[set[str]]:
        df = numbered(spark, 4)
        with pytest.raises(Exception, match="of the user"):
            client.pipeline(df).mapInArrow(fails, df.schema).repartition(2, "id").toDF()
        datasets_of_tasks = [{*each.read_text().split()} for each in tmp_path.iterdir()]
        for each in tmp_path.iterdir():
            each.unlink()
        return datasets_of_tasks

    first = set().union(*run())
    assert len(first) == 1, "what the tasks of an executor before the last one have written"
    again = set().union(*run())
    assert len(again) == 1
    assert again != first
    # The client ends those servers at its close that it knows.
    df = numbered(spark)
    assert client.pipeline(df).mapInArrow(slowly, df.schema).repartition(2, "id").toDF().count() == ROWS


def test_an_exchange_a_join_and_a_broadcast_need_nothing_configured_and_the_servers_demand_a_token(
    spark: SparkSession, client: ShuffleClient
) -> None:
    df = numbered(spark)
    summed = grouped(client.pipeline(df).mapInArrow(slowly, df.schema).repartition(8, "k"))
    assert sums_of(pa.Table.from_batches(summed.toDF().toArrow().to_batches())) == expected()
    assert len(servers_of(client)) == 2, "one in each executor"
    assert client._servers.home is not None
    listed = client.statistics()["servers"]
    assert len({each["start"] for each in listed}) == 2
    assert [each["gone"] for each in listed] == [None, None]
    assert client._servers.home.started is None, "no name was needed yet"
    for each in listed:
        with (
            ShuffleClient(each["location"]) as other,
            pytest.raises(FlightShuffleError, match="token"),
        ):
            other.datasets()

    right = spark.range(0, 97, numPartitions=2).selectExpr("id AS k", "id * 2 AS v")
    joined = client.pipeline(df).repartition(6, "k").join(client.pipeline(right).repartition(6, "k"), on="k")
    assert joined.count() == ROWS
    table = joined.toArrow()
    assert sorted(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True)) == [
        (number, number % 97 * 2) for number in range(ROWS)
    ]

    shared = client.broadcast(right)
    assert len(client.statistics()["servers"]) == 3, "one is beside the driver"
    found = client.pipeline(numbered(spark)).mapInArrow(
        lambda batches: (
            pa.record_batch({"n": pa.array([shared.value.num_rows], pa.int64())}) for _ in batches
        ),
        "n long",
    )
    assert {row["n"] for row in found.toDF().collect()} == {97}


def test_collected_rows_come_in_sparks_order_and_names_live_beside_the_driver(
    spark: SparkSession, client: ShuffleClient
) -> None:
    assert client.collect(numbered(spark)).read_all()["id"].to_pylist() == list(range(ROWS))
    client.put("d", pa.table({"n": [1, 2]}))
    assert [each.name for each in client.datasets()] == ["d"]
    assert client.get("d").read_all()["n"].to_pylist() == [1, 2]
    client.register(spark)
    assert spark.read.format("flight").load("d").count() == 2


@pytest.mark.long
def test_what_servers_of_executors_keep_elsewhere_outlives_them(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, Any] = {"memory_limit": "64MiB", "drain_grace_seconds": 0, "offload_to": tmp_path}
    with ShuffleClient.in_executors(
        spark, timeouts=Timeouts(tries=1, connect_seconds=2), **options
    ) as client:
        df = numbered(spark)
        spread = (
            client.pipeline(df).mapInArrow(slowly, df.schema).repartition(8, "k", offload=tmp_path).toDF()
        )
        single = client.pipeline(df).repartition(1, offload=tmp_path).toDF()
        pids = servers_of(client)
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert client._servers.home is not None
        assert client._servers.home._process is not None
        os.kill(client._servers.home._process.pid, signal.SIGKILL)
        assert sorted(row["id"] for row in spread.collect()) == list(range(ROWS))
        assert [row["id"] for row in single.collect()] == list(range(ROWS))
    assert not [*tmp_path.iterdir()]


@pytest.mark.long
def test_what_an_executor_lacks_is_said_once_with_what_to_do(spark: SparkSession) -> None:
    with (
        ShuffleClient.in_executors(spark, memory_limit="1KiB") as client,
        pytest.raises(InvalidRequest) as refused,
    ):
        client.pipeline(numbered(spark)).repartition(2).toDF()
    assert str(refused.value).startswith("no server can run in this executor: that of ")
    assert "--memory-limit" in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_a_server_beside_the_driver_demands_its_token(spark: SparkSession) -> None:
    with ShuffleClient.embedded(reachable=True, memory_limit="64MiB") as client:
        assert client.location.startswith("grpc://127.0.0.1:")
        assert client.pipeline(numbered(spark)).repartition(4, "k").toDF().count() == ROWS
        with (
            ShuffleClient(client.location) as other,
            pytest.raises(FlightShuffleError, match="token"),
        ):
            other.datasets()
