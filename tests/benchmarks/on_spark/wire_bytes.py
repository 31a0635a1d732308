"""Bytes on the wire for each byte that an exchange shuffles, over 1, 2 and 4 hosts; needs root, and iproute2.

A host is a network namespace with one executor of a real standalone cluster, whose server its tasks write to. Counted
is all that leaves the hosts' interfaces during a job, with headers and Spark's own messages: ``wire``. ``empty`` is the
same of a job of few rows. ``even`` is the (n - 1)/n that have to cross, once each, where all hosts write and read
equally much. Seconds say little: all hosts have the same cores.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_client import ShuffleClient
from tests.benchmarks.measure import console, table
from tests.benchmarks.on_spark.engines import Options
from tests.support.driver_process import DriverProcess, say, session
from tests.support.net_hosts import NetHost, net_hosts
from tests.support.polling import eventually
from tests.support.spark_cluster import standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTS = (1, 2, 4)
ROWS = 2_000_000
FEW_ROWS = 1_000
COLUMNS = ["hosts", "s", "MB", "wire MB", "empty MB", "wire / byte", "even"]


def _filled(batches: Iterator[Any]) -> Iterator[Any]:
    """Eight columns of numbers that no codec makes smaller."""
    for batch in batches:
        random = np.random.default_rng(batch.column(0)[0].as_py())
        columns = [pa.array(random.random(batch.num_rows)) for _ in range(8)]
        yield pa.record_batch([batch.column(0), *columns], names=["id", *"abcdefgh"])


def _counted(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield pa.record_batch({"n": pa.array([batch.num_rows], pa.int64())})


def _job(client: ShuffleClient, spark: SparkSession, rows: int, hosts: int) -> int:
    """Its stored bytes. Each host has three of the tasks that write, and of those that read."""
    schema = "id long, " + ", ".join(f"{name} double" for name in "abcdefgh")
    filled = client.pipeline(spark.range(0, rows, numPartitions=3 * hosts)).mapInArrow(_filled, schema)
    pipeline = filled.repartition(12 * hosts, "id", tasks=3 * hosts).mapInArrow(_counted, "n long")
    with client.scope():
        frame = pipeline.toDF()
        assert sum(row["n"] for row in frame.collect()) == rows
    done = pipeline.statistics()
    assert done is not None
    return done.exchanges[0].size_bytes


def drive(master: str, settings: dict[str, str], names: list[str], rounds: int, rows: int) -> None:
    """The driver: say the table's row for the hosts of these names."""
    hosts, count = [NetHost("", name=name) for name in names], len(names)
    with session(master, settings) as spark, ShuffleClient.in_executors(spark) as client:
        context: Any = spark.sparkContext._jsc.sc()
        eventually(lambda: int(context.getExecutorMemoryStatus().size()) - 1, count)

        def sent(rows: int) -> tuple[float, int, int]:
            before, began = sum(host.sent_bytes for host in hosts), time.perf_counter()
            size_bytes = _job(client, spark, rows, count)
            seconds = time.perf_counter() - began
            return seconds, size_bytes, sum(host.sent_bytes for host in hosts) - before

        sent(FEW_ROWS)
        _, _, empty_bytes = sent(FEW_ROWS)
        runs = [sent(rows) for _ in range(rounds)]
    seconds, size_bytes, wire_bytes = (statistics.median(each) for each in zip(*runs, strict=True))
    row = [
        f"{count}",
        f"{seconds:.1f}",
        f"{size_bytes / 1e6:.1f}",
        f"{wire_bytes / 1e6:.1f}",
        f"{empty_bytes / 1e6:.2f}",
        f"{(wire_bytes - empty_bytes) / size_bytes:.3f}",
        f"{(count - 1) / count:.3f}",
    ]
    say("row", row)


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("wire_bytes", arguments, rounds=3)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    rows: list[list[str]] = []
    for count in HOSTS:
        with (
            TemporaryDirectory() as directory,
            net_hosts(count + 1) as (first, *hosts),
            standalone_cluster(Path(directory), hosts=[first, *hosts]) as cluster,
        ):
            address = {"driver__host": first.address, "driver__bindAddress": first.address}
            settings = {**cluster.settings, **address}
            names = [host.name for host in hosts]
            job = (cluster.master, settings, names, options.rounds, int(ROWS * options.scale))
            with DriverProcess(drive, *job, host=first) as driver:
                rows.append(driver.wait_for("row"))
                driver.wait()
    console.print("All hosts are on one machine; bytes are those of the hosts' network interfaces.")
    table("Bytes on the wire", COLUMNS, rows)
