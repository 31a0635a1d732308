"""Servers in executors while tasks, executors, servers and whole hosts end or stand still, and drivers are killed.

On a real cluster of two workers. Spark finds out quickly what is dead, so that its own waits are short, and speculates:
a process that stands still is not an error to it. every case is struck in long runs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import Copies, ShuffleClient, Timeouts
from spark_client.pipeline import execution
from tests.support.driver_process import DriverProcess, say, session
from tests.support.executor_processes import TaskHost, servers_of, wait_for_end
from tests.support.failing_tasks import first_time
from tests.support.polling import eventually
from tests.support.spark_cluster import Cluster, standalone_cluster
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 20_000
PATIENCE_SECONDS = 100.0
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
CASES = [
    (victim, how, when)
    for victim in ("server", "executor", "task", "host")
    for how in ("SIGKILL", "SIGSTOP")
    for when in ("written", "sealed", "read")
    if (victim, when) != ("task", "sealed")  # none runs then
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case in every run, the others in long ones."""
    if "strike" in metafunc.fixturenames:
        quick = ("server", "SIGSTOP", "written")
        cases = [pytest.param(case, marks=() if case == quick else pytest.mark.long) for case in CASES]
        metafunc.parametrize("strike", cases, ids=["-".join(case) for case in CASES])


@pytest.fixture
def cluster(java_home: str, tmp_path: Path) -> Iterator[Cluster]:
    """With a master that misses a worker soon."""
    opts = "-Dspark.worker.timeout=4"
    with standalone_cluster(
        tmp_path / "cluster", environment={"SPARK_MASTER_OPTS": opts, "SPARK_WORKER_OPTS": opts}
    ) as found:
        yield found


@pytest.fixture
def spark(cluster: Cluster) -> Iterator[SparkSession]:
    with local_session(cluster.master, **cluster.settings, **SETTINGS) as session:
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


def waits(directory: Path, batches: Iterator[pa.RecordBatch], first: int = 2) -> Iterator[pa.RecordBatch]:
    """The first task that comes here says who it is, after some of its rows, and waits for its fate."""
    for number, batch in enumerate(batches):
        yield batch
        if number == first and first_time(directory / "came"):
            (directory / "name").write_text(str(os.getpid()))
            (directory / "name").rename(directory / "waits")
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (directory / "goes on").exists() and time.monotonic() < deadline:
                time.sleep(0.02)


def rows_of(pipeline: Any) -> list[tuple[int, int, int]]:
    return groups_of(pipeline.collect().read_all())


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


def test_rows_come_once_whatever_ends_or_stands_still(
    client: ShuffleClient,
    spark: SparkSession,
    tmp_path: Path,
    strike: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "WRITE_BUDGET_BYTES", 1 << 20)
    victim, how, when = strike
    where = partial(waits, tmp_path)
    df = spark.range(0, ROWS, numPartitions=6).selectExpr("id", "id % 97 AS k", "repeat('x', 500) AS s")
    rows = client.pipeline(df)
    if when == "written":
        rows = rows.mapInArrow(where, df.schema)
    exchanged = rows.exchange(8, "id")
    if when == "read":
        exchanged = exchanged.mapInArrow(where, df.schema)
    pipeline = exchanged.exchange(8, "k").applyInArrow(summed, "k long, n long, s long")
    if when == "sealed":
        assert groups_of(pipeline.persist().collect().read_all()) == expected()
        (pid,) = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getpid()).collect()
        (tmp_path / "waits").write_text(str(pid))
    run = partial(rows_of, pipeline)
    with ThreadPoolExecutor() as threads:
        running = None if when == "sealed" else threads.submit(run)
        eventually(lambda: (tmp_path / "waits").exists() or (running is not None and running.done()), True)
        host = TaskHost.of(client, int((tmp_path / "waits").read_text()))
        try:
            host.signal(victim, signal.Signals[how])
            (tmp_path / "goes on").touch()
            assert (running or threads.submit(run)).result(PATIENCE_SECONDS) == expected()
        finally:
            (tmp_path / "goes on").touch()
            host.wake()


def killed_driver(master: str, settings: dict[str, str], directory: str) -> None:
    with session(master, settings) as spark:
        # In a relative directory: under the working directory of each executor, as if it were another host's.
        client = ShuffleClient.in_executors(spark, copies=Copies(("copies",)), memory_limit="64MiB")
        kept = client.pipeline(spark.range(0, ROWS, numPartitions=6)).exchange(4, "id").persist()
        client.put("d", pa.table({"n": [1, 2]}))
        shared = client.broadcast(spark.range(97))

        def lasts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            assert shared.value.num_rows == 97
            yield from waits(Path(directory), batches, 0)

        assert kept.count() == ROWS
        say("written", len(servers_of(client)))
        kept.mapInArrow(lasts, "id long").exchange(4, "id").collect()


def test_of_a_killed_driver_no_process_and_no_file_is_left_on_executors_hosts(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(pattern: str) -> list[Path]:
        return [each for each in (tmp_path / "cluster").rglob(pattern) if each.suffix != ".new"]

    monkeypatch.chdir(tmp_path)
    with DriverProcess(killed_driver, cluster.master, cluster.settings | SETTINGS, str(tmp_path)) as driver:
        assert driver.wait_for("written") == 2
        eventually((tmp_path / "waits").exists, True, PATIENCE_SECONDS)
        assert found("server.json")
        assert found("*.arrows")
        driver.kill()
        eventually(driver.running, list[str]())
        for left in ("server.json", "server.toml", "*.arrows", "*-*.lock", "*.segment"):
            eventually(partial(found, left), list[Path]())
