"""Applications of their own on the cluster: servers in their executors with no setting, and what is left of them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_client import Copies, ShuffleClient
from tests.support.driver_process import DriverProcess, say, session
from tests.support.executor_processes import servers_of
from tests.support.failing_tasks import waits_for_its_fate
from tests.support.polling import eventually
from tests.support.processes import wait_for_end
from tests.support.python_program import output_of
from tests.support.spark_cluster import Cluster, connect_server
from tests.support.spark_session import local_session
from tests.support.sums import ROWS, numbered

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_a_session_without_settings_has_servers_in_its_executors_which_end_with_it(cluster: Cluster) -> None:
    """And with Python workers that the executors' JVMs start themselves."""
    settings = cluster.settings | {"python__use__daemon": "false"}
    with local_session(cluster.master, **settings) as spark:
        client = ShuffleClient.getOrCreate(spark)
        assert ShuffleClient.getOrCreate(spark) is client
        assert client.location == "executors"
        assert client.pipeline(numbered(spark)).repartition(4, "k").toDF().count() == ROWS
        pids = servers_of(client)
        assert pids
        spark.stop()
        wait_for_end(pids)
        client.close()


def test_dynamic_allocation_keeps_executors_as_long_as_datasets_need_them(cluster: Cluster) -> None:
    settings = {
        "dynamicAllocation__enabled": "true",
        "dynamicAllocation__executorIdleTimeout": "8s",  # both are seen before one goes
        "dynamicAllocation__initialExecutors": "2",
    }
    with (
        local_session(cluster.master, **cluster.settings | settings) as spark,
        ShuffleClient.in_executors(spark, memory_limit="64MiB") as client,
    ):
        spark_context: Any = spark.sparkContext._jsc.sc()

        def executors() -> int:
            return int(spark_context.getExecutorMemoryStatus().size()) - 1

        eventually(executors, 2)
        frame = client.pipeline(numbered(spark, 1)).repartition(2).toDF()
        eventually(executors, 1)  # that without data has gone
        assert frame.count() == ROWS
        client.release(frame)
        gc.collect()

        def after_collection() -> int:
            spark._jvm.System.gc()  # type: ignore[union-attr]
            return executors()

        eventually(after_collection, 0)


CONNECTED = """
import sys
from pyspark.sql import SparkSession
from spark_client import ShuffleClient

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
assert "connect" in type(spark).__module__
with ShuffleClient.getOrCreate(spark) as client:
    assert client.location == "executors"
    df = spark.range(0, 1000, numPartitions=4).selectExpr("id", "id % 7 AS k")
    assert sorted(row.id for row in client.pipeline(df).repartition(3, "k").toDF().collect()) == list(range(1000))
    assert client.collect(df).read_all()["id"].to_pylist() == list(range(1000))
    client.put("seven", client.collect(spark.range(7)))
    assert spark.read.format("flight").load("seven").count() == 7
spark.stop()
"""


def test_a_client_of_spark_connect_has_them_too(cluster: Cluster) -> None:
    for package in ("grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(package, reason="PySpark needs it for Connect")
    settings = {f"spark.{name.replace('__', '.')}": value for name, value in cluster.settings.items()}
    settings |= {"spark.master": cluster.master, "spark.driver.host": "127.0.0.1"}
    with connect_server(settings, {"PYSPARK_PYTHON": sys.executable}) as url:
        output_of(CONNECTED, url)


def killed_driver(master: str, settings: dict[str, str], directory: str) -> None:
    with session(master, settings) as spark:
        # In a relative directory: under the working directory of each executor, as if it were another host's.
        client = ShuffleClient.in_executors(spark, copies=Copies(("copies",)), memory_limit="64MiB")
        kept = client.pipeline(spark.range(0, ROWS, numPartitions=6)).repartition(4, "id").persist()
        client.put("d", pa.table({"n": [1, 2]}))
        shared = client.broadcast(spark.range(97))

        def lasts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            assert shared.value.num_rows == 97
            yield from waits_for_its_fate(Path(directory), batches, 0)

        assert kept.count() == ROWS
        say("written", len(servers_of(client)))
        kept.mapInArrow(lasts, "id long").repartition(4, "id").toArrow()


def test_of_a_killed_driver_no_process_and_no_file_is_left_on_executors_hosts(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(pattern: str) -> set[Path]:
        return {each for each in cluster.directory.rglob(pattern) if each.suffix != ".new"}

    def left(pattern: str) -> set[Path]:
        return files(pattern) - before[pattern]

    kinds = ("server.json", "server.toml", "*.arrows", "*-*.lock", "*.segment")
    before = {kind: files(kind) for kind in kinds}
    monkeypatch.chdir(tmp_path)
    with DriverProcess(killed_driver, cluster.master, cluster.settings, str(tmp_path)) as driver:
        assert driver.wait_for("written") == 2
        eventually((tmp_path / "waits").exists, True)
        assert left("server.json")
        assert left("*.arrows")
        driver.kill()
        eventually(driver.running, list[str]())
        for kind in kinds:
            eventually(partial(left, kind), set[Path]())
