"""Clients of servers in executors, on a real standalone cluster of two workers, with nothing else configured."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flight_server.protocol import FlightShuffleError, InvalidRequest
from spark_client import ShuffleClient, Timeouts
from tests.support.executor_processes import servers_of, wait_for_end
from tests.support.polling import eventually
from tests.support.spark_cluster import ROOT, Cluster, connect_server, standalone_cluster
from tests.support.spark_session import SharedSessions, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 20_000
GROUPS = "k long, n long, s long"


@pytest.fixture(scope="module")
def cluster(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def sessions(cluster: Cluster) -> Iterator[SharedSessions]:
    found = SharedSessions()
    found.session(master=cluster.master, **cluster.settings)
    yield found
    found.close()


@pytest.fixture
def spark(cluster: Cluster, sessions: SharedSessions) -> SparkSession:
    """One context of Spark for all tests but the one that ends it."""
    return sessions.session(master=cluster.master, **cluster.settings)


@pytest.fixture
def client(spark: SparkSession) -> Iterator[ShuffleClient]:
    """A client; once it is closed no server of it is left, in whichever executor."""
    options: dict[str, Any] = {"memory_limit": "64MiB", "drain_grace_seconds": 0}
    with ShuffleClient.in_executors(spark, timeouts=Timeouts(tries=2), **options) as found:
        yield found
        pids = servers_of(found)
    wait_for_end(pids)


def rows(spark: SparkSession, partitions: int = 6) -> DataFrame:
    return spark.range(0, ROWS, numPartitions=partitions).selectExpr("id", "id % 97 AS k")


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So that one executor does not run all tasks."""
    time.sleep(0.3)
    yield from batches


def summed(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    return pa.table({"k": [keys[0].as_py()], "n": [table.num_rows], "s": [pc.sum(table["id"]).as_py()]})


def expected() -> list[tuple[int, int, int]]:
    groups: dict[int, list[int]] = {}
    for number in range(ROWS):
        groups.setdefault(number % 97, []).append(number)
    return sorted((key, len(found), sum(found)) for key, found in groups.items())


def groups_of(table: pa.Table) -> list[tuple[int, int, int]]:
    return sorted(zip(*(table[name].to_pylist() for name in ("k", "n", "s")), strict=True))


def test_the_driver_writes_what_is_small_to_servers_that_tasks_have_started(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"k": range(100)}), tmp_path / "small.parquet")

    def tasks_of_a_run() -> list[int]:
        pipeline = client.scan(tmp_path / "small.parquet").exchange(3, "k").filter(pc.field("k") > 9)
        assert sorted(pipeline.collect().read_all()["k"].to_pylist()) == [*range(10, 100)]
        assert pipeline.count() == 90
        assert pipeline.statistics is not None
        return [each.tasks for each in pipeline.statistics.exchanges]

    assert tasks_of_a_run() == [1], "no server was there"
    assert tasks_of_a_run() == [0]


def test_an_exchange_a_join_and_a_broadcast_need_nothing_configured(
    spark: SparkSession, client: ShuffleClient
) -> None:
    df = rows(spark)
    grouped = client.pipeline(df).mapInArrow(slowly, df.schema).exchange(8, "k").applyInArrow(summed, GROUPS)
    assert groups_of(pa.Table.from_batches(grouped.toDF().toArrow().to_batches())) == expected()
    assert len(servers_of(client)) == 2, "one in each executor"
    assert client._servers.home is not None
    listed = client.statistics()["servers"]
    assert len({each["start"] for each in listed}) == 2
    assert [each["gone"] for each in listed] == [None, None]
    assert client._servers.home.started is None, "no name was needed yet"

    right = spark.range(0, 97, numPartitions=2).selectExpr("id AS k", "id * 2 AS v")
    joined = client.pipeline(df).exchange(6, "k").join(client.pipeline(right).exchange(6, "k"), on="k")
    assert joined.count() == ROWS
    table = joined.collect().read_all()
    assert sorted(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True)) == [
        (number, number % 97 * 2) for number in range(ROWS)
    ]

    shared = client.broadcast(right)
    assert len(client.statistics()["servers"]) == 3, "one is beside the driver"
    found = client.pipeline(rows(spark)).mapInArrow(
        lambda batches: (
            pa.record_batch({"n": pa.array([shared.value.num_rows], pa.int64())}) for _ in batches
        ),
        "n long",
    )
    assert {row["n"] for row in found.toDF().collect()} == {97}


def test_executors_with_two_servers_each_spread_over_all_of_them_and_end_them(spark: SparkSession) -> None:
    options: dict[str, Any] = {"workers": 2, "memory_limit": "128MiB", "drain_grace_seconds": 0}
    with ShuffleClient.in_executors(spark, timeouts=Timeouts(tries=2), **options) as client:
        df = rows(spark, 16)
        grouped = (
            client.pipeline(df).mapInArrow(slowly, df.schema).exchange(8, "k").applyInArrow(summed, GROUPS)
        )
        assert groups_of(grouped.collect().read_all()) == expected()
        pids = servers_of(client)
        assert len(pids) == 6, "two workers and their supervisor in each executor"
        assert len(client._servers.locations) == 4
    wait_for_end(pids)


def test_collected_rows_come_in_sparks_order_and_names_live_beside_the_driver(
    spark: SparkSession, client: ShuffleClient
) -> None:
    assert client.collect(rows(spark)).read_all()["id"].to_pylist() == list(range(ROWS))
    client.put("d", pa.table({"n": [1, 2]}))
    assert [each.name for each in client.datasets()] == ["d"]
    assert client.get("d").read_all()["n"].to_pylist() == [1, 2]
    client.register(spark)
    assert spark.read.format("flight").load("d").count() == 2


def test_an_executor_that_is_killed_between_two_exchanges_costs_a_rerun(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    marker = tmp_path / "killed"

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_client.executors.executor_servers import executor_process

        for batch in batches:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(executor_process(), signal.SIGKILL)
            yield batch

    df = rows(spark)
    written = client.pipeline(df).mapInArrow(slowly, df.schema).exchange(8, "id")
    pipeline = written.mapInArrow(kill, df.schema).exchange(8, "k").applyInArrow(summed, GROUPS)
    assert groups_of(pipeline.collect().read_all()) == expected()
    assert marker.exists()


def test_what_servers_of_executors_keep_elsewhere_outlives_them(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, Any] = {"memory_limit": "64MiB", "drain_grace_seconds": 0, "offload_to": tmp_path}
    with ShuffleClient.in_executors(
        spark, timeouts=Timeouts(tries=1, connect_seconds=2), **options
    ) as client:
        df = rows(spark)
        spread = client.pipeline(df).mapInArrow(slowly, df.schema).exchange(8, "k", offload=tmp_path).toDF()
        single = client.pipeline(df).exchange(1, offload=tmp_path).toDF()
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


def test_what_an_executor_lacks_is_said_once_with_what_to_do(spark: SparkSession) -> None:
    with (
        ShuffleClient.in_executors(spark, memory_limit="1KiB") as client,
        pytest.raises(InvalidRequest) as refused,
    ):
        client.pipeline(rows(spark)).exchange(2).toDF()
    assert str(refused.value).startswith("no server can run in this executor: that of ")
    assert "--memory-limit" in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_a_server_beside_the_driver_demands_its_token(spark: SparkSession) -> None:
    with ShuffleClient.embedded(reachable=True, memory_limit="64MiB") as client:
        assert client.location.startswith("grpc://127.0.0.1:")
        assert client.pipeline(rows(spark)).exchange(4, "k").toDF().count() == ROWS
        with (
            ShuffleClient(client.location) as other,
            pytest.raises(FlightShuffleError, match="token"),
        ):
            other.datasets()


def test_a_session_without_settings_has_servers_in_its_executors_which_end_with_it(cluster: Cluster) -> None:
    """And with Python workers that the executors' JVMs start themselves."""
    settings = cluster.settings | {"python__use__daemon": "false"}
    with local_session(cluster.master, **settings) as session:
        client = ShuffleClient.get(session)
        assert ShuffleClient.get(session) is client
        assert client.location == "executors"
        assert client.pipeline(rows(session)).exchange(4, "k").toDF().count() == ROWS
        pids = servers_of(client)
        assert pids
        session.stop()
        wait_for_end(pids)
        client.close()


def test_dynamic_allocation_keeps_executors_as_long_as_datasets_need_them(cluster: Cluster) -> None:
    settings = {
        "dynamicAllocation__enabled": "true",
        "dynamicAllocation__executorIdleTimeout": "8s",  # both are seen before one goes
        "dynamicAllocation__initialExecutors": "2",
    }
    with (
        local_session(cluster.master, **cluster.settings | settings) as session,
        ShuffleClient.in_executors(session, memory_limit="64MiB") as client,
    ):
        spark_context: Any = session.sparkContext._jsc.sc()

        def executors() -> int:
            return int(spark_context.getExecutorMemoryStatus().size()) - 1

        eventually(executors, 2)
        frame = client.pipeline(rows(session, partitions=1)).exchange(2).toDF()
        eventually(executors, 1)  # that without data has gone
        assert frame.count() == ROWS
        client.release(frame)
        gc.collect()

        def after_collection() -> int:
            session._jvm.System.gc()  # type: ignore[union-attr]
            return executors()

        eventually(after_collection, 0)


CONNECTED = """
import sys
from pyspark.sql import SparkSession
from spark_client import ShuffleClient

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
assert "connect" in type(spark).__module__
with ShuffleClient.get(spark) as client:
    assert client.location == "executors"
    df = spark.range(0, 1000, numPartitions=4).selectExpr("id", "id % 7 AS k")
    assert sorted(row.id for row in client.pipeline(df).exchange(3, "k").toDF().collect()) == list(range(1000))
    assert client.collect(df).read_all()["id"].to_pylist() == list(range(1000))
    client.put("seven", client.collect(spark.range(7)))
    assert spark.read.format("flight").load("seven").count() == 7
spark.stop()
"""


def test_a_client_of_spark_connect_has_them_too(cluster: Cluster, sessions: SharedSessions) -> None:
    for package in ("grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(package, reason="PySpark needs it for Connect")
    sessions.close()  # its executors have all cores
    settings = {f"spark.{name.replace('__', '.')}": value for name, value in cluster.settings.items()}
    settings |= {"spark.master": cluster.master, "spark.driver.host": "127.0.0.1"}
    with connect_server(settings, {"PYSPARK_PYTHON": sys.executable}) as url:
        done = subprocess.run(
            [sys.executable, "-c", CONNECTED, url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr[:4000]
