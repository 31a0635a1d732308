"""Thousands of pipelines, persisted pipelines and broadcasts in one session: what driver and server keep of them.

Nothing is released by hand but broadcasts, which are destroyed, and results in their scope. A table has a line for each
tenth of the run: objects of the driver's collector, its resident size, the JVM's heap after a collection, and the
server's datasets and resident size. All are flat when nothing is left.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_client import ShuffleClient
from tests.benchmarks.measure import MIB, conditions, console, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ["made", "seconds", "driver's objects", "driver MiB", "JVM MiB", "datasets", "server MiB"]


def main(arguments: list[str]) -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(prog="lifetimes")
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--only", choices=["pipelines", "persists", "broadcasts"])
    options = parser.parse_args(arguments)
    with (
        ServerProcess.start(http_port=0) as server,
        local_session() as spark,
        ShuffleClient(server.location) as client,
    ):
        for name, make in _makers(client, spark).items():
            if options.only in (None, name):
                table(f"{name} of one session", COLUMNS, _rows(make, options.times, client, spark, server))
    console.print(conditions(1))


def _makers(client: ShuffleClient, spark: SparkSession) -> dict[str, Callable[[], None]]:
    frame = spark.range(0, 10, 1, 1)
    rows = pa.table({"x": range(1000)})

    def pipelines() -> None:
        with client.scope():
            df = client.pipeline(frame).repartition(1, "id").toDF()
            assert df.schema.names == ["id"]

    def persists() -> None:
        pipeline = client.pipeline(frame).repartition(1, "id").persist()
        assert pipeline.count() == 10
        assert pipeline.toArrow().num_rows == 10

    def broadcasts() -> None:
        shared = client.broadcast(rows)
        assert shared.table().num_rows == 1000
        shared.destroy()

    return {"pipelines": pipelines, "persists": persists, "broadcasts": broadcasts}


def _rows(
    make: Callable[[], None], times: int, client: ShuffleClient, spark: SparkSession, server: ServerProcess
) -> list[list[str]]:
    began, found = time.monotonic(), []
    for number in range(1, times + 1):
        make()
        if number % max(1, times // 10) == 0:
            found.append([f"{number:,}", f"{time.monotonic() - began:.0f}", *_kept(client, spark, server)])
            console.print("  ".join(found[-1]))
    return found


def _kept(client: ShuffleClient, spark: SparkSession, server: ServerProcess) -> list[str]:
    gc.collect()
    eventually(lambda: len(client.datasets()), 0)
    jvm: Any = spark._jvm  # Spark Classic
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    heap_bytes = runtime.totalMemory() - runtime.freeMemory()
    return [
        f"{len(gc.get_objects()):,}",
        f"{_resident_bytes('self') / MIB:.0f}",
        f"{heap_bytes / MIB:.0f}",
        str(len(client.datasets())),
        f"{_resident_bytes(server.process.pid) / MIB:.0f}",
    ]


def _resident_bytes(process: object) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
