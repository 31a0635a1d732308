"""Servers in executors while tasks, executors, servers and whole hosts end or stand still.

On a real cluster of two workers. Spark finds out quickly what is dead, so that its own waits are short, and speculates:
a process that stands still is not an error to it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_client import ShuffleClient, Timeouts
from spark_client.pipeline import execution
from tests.support.executor_processes import TaskHost, servers_of
from tests.support.failing_tasks import FATE_SECONDS, waits_for_its_fate
from tests.support.polling import eventually
from tests.support.processes import wait_for_end
from tests.support.spark_cluster import standalone_cluster
from tests.support.spark_session import local_session
from tests.support.sums import expected, grouped, numbered, sums_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

SETTINGS = {
    "executor__heartbeatInterval": "1s",
    "network__timeout": "6s",
    "network__timeoutInterval": "2s",
    "sql__execution__arrow__maxRecordsPerBatch": "500",
    "speculation": "true",
    "speculation__interval": "200ms",
    "speculation__quantile": "0.5",
    "speculation__minTaskRuntime": "2s",
}
TIMEOUTS = Timeouts(
    call_seconds=5,
    stall_seconds=5,
    first_message_seconds=5,
    connect_seconds=2,
    tries=2,
)
STRIKES = [
    ("server", "SIGSTOP", "written"),
    ("server", "SIGKILL", "sealed"),
    ("server", "SIGSTOP", "read"),
    ("executor", "SIGKILL", "written"),
    ("executor", "SIGSTOP", "sealed"),
    ("executor", "SIGKILL", "read"),
    ("task", "SIGSTOP", "written"),
    ("task", "SIGKILL", "read"),
    ("host", "SIGKILL", "written"),
    ("host", "SIGSTOP", "sealed"),
    ("host", "SIGKILL", "read"),
]


@pytest.fixture
def spark(java_home: str, tmp_path: Path) -> Iterator[SparkSession]:
    """On a cluster of its own, with a master that misses a worker soon."""
    soon = dict.fromkeys(("SPARK_MASTER_OPTS", "SPARK_WORKER_OPTS"), "-Dspark.worker.timeout=4")
    with (
        standalone_cluster(tmp_path / "cluster", environment=soon) as cluster,
        local_session(cluster.master, **cluster.settings, **SETTINGS) as session,
    ):
        yield session


@pytest.fixture
def client(spark: SparkSession) -> Iterator[ShuffleClient]:
    """A client; once its session has ended, too, no server of it is left, in whichever executor."""
    options: dict[str, Any] = {"memory_limit": "64MiB", "drain_grace_seconds": 0}
    with ShuffleClient.in_executors(spark, timeouts=TIMEOUTS, **options) as found:
        yield found
        pids = servers_of(found)
    spark.stop()
    wait_for_end(pids)


@pytest.mark.parametrize("strike", STRIKES, ids="-".join)
def test_rows_come_once_whatever_ends_or_stands_still(
    client: ShuffleClient,
    spark: SparkSession,
    tmp_path: Path,
    strike: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "WRITE_BUDGET_BYTES", 1 << 20)
    victim, how, when = strike
    where = partial(waits_for_its_fate, tmp_path)
    df = numbered(spark).selectExpr("*", "repeat('x', 500) AS s")
    rows = client.pipeline(df)
    if when == "written":
        rows = rows.mapInArrow(where, df.schema)
    exchanged = rows.repartition(8, "id")
    if when == "read":
        exchanged = exchanged.mapInArrow(where, df.schema)
    pipeline = grouped(exchanged.repartition(8, "k"))
    if when == "sealed":
        assert sums_of(pipeline.persist().toArrow()) == expected()
        (pid,) = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getpid()).collect()
        (tmp_path / "waits").write_text(str(pid))
    with ThreadPoolExecutor() as threads:
        running = None if when == "sealed" else threads.submit(pipeline.toLocalIterator)
        eventually(lambda: (tmp_path / "waits").exists() or (running is not None and running.done()), True)
        host = TaskHost.of(client, int((tmp_path / "waits").read_text()))
        try:
            host.signal(victim, signal.Signals[how])
            (tmp_path / "goes on").touch()
            found = (running or threads.submit(pipeline.toLocalIterator)).result(FATE_SECONDS)
            assert sums_of(found.read_all()) == expected()
        finally:
            (tmp_path / "goes on").touch()
            host.wake()
