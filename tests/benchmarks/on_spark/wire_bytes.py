"""Bytes on the wire for each byte that an exchange shuffles, over 1, 2 and 4 hosts; needs root, and iproute2.

A host is a network namespace with one executor of a real standalone cluster, whose server its tasks write to. Counted
is all that leaves the hosts' interfaces during a job, with headers and Spark's own messages: ``wire``. ``empty`` is the
same of a job of few rows. ``even`` is the (n - 1)/n that have to cross, once each, where all hosts write and read
equally much. Seconds say little: all hosts have the same cores.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_client import ShuffleClient
from tests.benchmarks.measure import console, table
from tests.benchmarks.on_spark.engines import Options
from tests.support.logged_process import LoggedProcess
from tests.support.polling import eventually
from tests.support.spark_cluster import ROOT
from tests.support.spark_home import spark_home
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTS = (1, 2, 4)
ROWS = 2_000_000
FEW_ROWS = 1_000
COLUMNS = ["hosts", "s", "MB", "wire MB", "empty MB", "wire / byte", "even"]
_NETWORK = "10.78.0"
_DRIVER = f"{_NETWORK}.254"


class _Host:
    """A network namespace, joined to all others, and to this one, by a switch."""

    def __init__(self, stack: ExitStack, switch: str, number: int) -> None:
        self.address = f"{_NETWORK}.{number + 1}"
        self.name = f"{switch}-{number}"
        port = f"{switch}p{number}"
        _ip("netns", "add", self.name)
        stack.callback(_ip, "netns", "del", self.name)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", port, "master", switch, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for each in ("eth0", "lo"):
            _ip("-n", self.name, "link", "set", each, "up")
        self._sent = Path("/sys/class/net", port, "statistics", "rx_bytes")

    @property
    def sent_bytes(self) -> int:
        """All that has left the host."""
        return int(self._sent.read_text())


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def _cluster(directory: Path, count: int) -> Iterator[tuple[str, list[_Host]]]:
    """The address of a master here, whose workers are on hosts."""
    environment = {
        "SPARK_HOME": str(spark_home()),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    program = str(spark_home() / "bin" / "spark-class")
    daemon = "org.apache.spark.deploy"
    with ExitStack() as stack:
        switch = f"fs{os.getpid() % 1_000_000}"
        _ip("link", "add", switch, "type", "bridge")
        stack.callback(_ip, "link", "del", switch)
        _ip("addr", "add", f"{_DRIVER}/24", "dev", switch)
        _ip("link", "set", switch, "up")
        hosts = [_Host(stack, switch, number) for number in range(count)]
        options = ["--host", _DRIVER, "--port", "0", "--webui-port", "0"]
        own = environment | {"SPARK_LOCAL_IP": _DRIVER}
        master = LoggedProcess([program, f"{daemon}.master.Master", *options], own)
        stack.callback(master.stop)
        address = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        for host in hosts:
            folder = directory / host.address
            folder.mkdir()
            folders = {"SPARK_WORKER_DIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
            options = ["--host", host.address, "--webui-port", "0", "--cores", "1", "--memory", "1g", address]
            command = ["ip", "netns", "exec", host.name, program, f"{daemon}.worker.Worker", *options]
            worker = LoggedProcess(command, environment | folders | {"SPARK_LOCAL_IP": host.address})
            stack.callback(worker.stop)
            worker.wait_for("Successfully registered with master")
        yield address, hosts


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


def _measured(master: str, hosts: Sequence[_Host], count: int, options: Options) -> list[str]:
    settings = {
        "driver__host": _DRIVER,
        "driver__bindAddress": _DRIVER,
        "cores__max": str(count),
        "executor__cores": "1",
        "executor__memory": "512m",
        "executorEnv__PYTHONPATH": str(ROOT),
    }
    rows = int(ROWS * options.scale)
    with local_session(master, **settings) as spark, ShuffleClient.in_executors(spark) as client:
        context: Any = spark.sparkContext._jsc.sc()
        eventually(lambda: int(context.getExecutorMemoryStatus().size()) - 1, count)

        def sent(rows: int) -> tuple[float, int, int]:
            before, began = sum(host.sent_bytes for host in hosts), time.perf_counter()
            size_bytes = _job(client, spark, rows, count)
            seconds = time.perf_counter() - began
            return seconds, size_bytes, sum(host.sent_bytes for host in hosts) - before

        sent(FEW_ROWS)
        _, _, empty_bytes = sent(FEW_ROWS)
        runs = [sent(rows) for _ in range(options.rounds)]
    seconds, size_bytes, wire_bytes = (statistics.median(each) for each in zip(*runs, strict=True))
    return [
        f"{count}",
        f"{seconds:.1f}",
        f"{size_bytes / 1e6:.1f}",
        f"{wire_bytes / 1e6:.1f}",
        f"{empty_bytes / 1e6:.2f}",
        f"{(wire_bytes - empty_bytes) / size_bytes:.3f}",
        f"{(count - 1) / count:.3f}",
    ]


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("wire_bytes", arguments, rounds=3)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with TemporaryDirectory() as directory, _cluster(Path(directory), max(HOSTS)) as (master, hosts):
        rows = [_measured(master, hosts, count, options) for count in HOSTS]
    console.print("All hosts are on one machine; bytes are those of the hosts' network interfaces.")
    table("Bytes on the wire", COLUMNS, rows)
