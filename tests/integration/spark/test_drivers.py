"""Drivers as processes of their own, locally and on a cluster of two workers: interrupted, killed, without executors.

After each test the server holds what it held before, and no process that the driver started runs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_client import ShuffleClient
from tests.support.driver_process import DriverProcess, say, session
from tests.support.polling import eventually
from tests.support.server_holdings import held
from tests.support.server_process import ServerProcess
from tests.support.spark_cluster import standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LEASE_SECONDS = 5.0
ROWS = 2000


@dataclass(frozen=True)
class Place:
    """Where a driver's tasks run."""

    master: str
    settings: dict[str, str]


@pytest.fixture(scope="module")
def cluster(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield Place(found.master, found.settings)


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess.start(http_port=0) as found:
        yield found
        assert found.terminate() == 0, found.tail()


@pytest.fixture
def server(process: ServerProcess) -> Iterator[ServerProcess]:
    with ShuffleClient(process.location) as client:
        before = held(client)
        assert before["datasets"] == []
        yield process
        eventually(lambda: held(client), before)


# What the drivers do.


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def wait_for_ever(directory: Path, batches: Iterator[Any]) -> Iterator[Any]:
    """Give so many rows that frames have reached the server, and no end."""
    for batch in batches:
        yield from [batch] * 200
        (directory / "writing").touch()
        while True:
            time.sleep(0.02)


def right(rows: list[Any]) -> bool:
    return sorted(row.id for row in rows) == list(range(ROWS))


def interrupted_driver(master: str, settings: dict[str, str], location: str | None, directory: str) -> None:
    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        yield from wait_for_ever(Path(directory), batches)

    made = ShuffleClient.embedded() if location is None else ShuffleClient(location)
    with session(master, settings) as spark, made as client:
        pipeline = client.pipeline(spark.range(0, ROWS, 1, 4))
        try:
            pipeline.mapInArrow(waits, "id long").exchange(3, "id").toDF()
        except KeyboardInterrupt:
            say("datasets", [dataset.name for dataset in client.datasets()])
            jobs = spark.sparkContext.statusTracker()
            eventually(lambda: len(jobs.getActiveJobsIds()), 0)
        say("rows", right(pipeline.mapInArrow(same, "id long").exchange(3, "id").toDF().collect()))
        # py4j has connected this thread anew, to one of the JVM that has no active session.
        path = str(Path(directory, "numbers.parquet"))
        pq.write_table(pa.table({"id": range(ROWS)}), path)
        say("scanned", client.scan(path).count())


def killed_driver(master: str, settings: dict[str, str], location: str, directory: str) -> None:
    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        yield from wait_for_ever(Path(directory), batches)

    with session(master, settings) as spark:
        client = ShuffleClient(location, lease_seconds=LEASE_SECONDS)
        # A result, a dataset that is read, and one that is written.
        result = client.pipeline(spark.range(ROWS)).exchange(3, "id").toDF()
        say("result", result.count())
        pipeline = client.pipeline(spark.range(0, ROWS, 1, 4)).exchange(3, "id").mapInArrow(waits, "id long")
        pipeline.exchange(2, "id").toDF()


def driver_without_executors(
    master: str, settings: dict[str, str], location: str, options: dict[str, str]
) -> None:
    from pyspark.errors import PythonException

    def too_much(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        bytearray(4 << 30)

    with session(master, settings | options) as spark, ShuffleClient(location) as client:

        def executors() -> int:
            return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1

        def total(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
            return pa.table({"k": [keys[0].as_py()], "ids": [sorted(table.column("id").to_pylist())]})

        df = spark.range(0, ROWS, 1, 4).selectExpr("id", "id % 10 as k")
        pipeline = client.pipeline(df).mapInArrow(same, "id long, k long").exchange(5, "k")
        placed = pipeline.applyInArrow(total, "k long, ids array<long>").exchange(2, "k").toDF()
        eventually(executors, 0)
        expected = [(k, list(range(k, ROWS, 10))) for k in range(10)]
        say("rows", sorted((row.k, list(row.ids)) for row in placed.collect()) == expected)
        with pytest.raises(PythonException) as caught:
            client.pipeline(spark.range(9)).mapInArrow(too_much, "id long").exchange(1).toDF()
        say("error", str(caught.value))
        say("datasets", [dataset.name for dataset in client.datasets()])


# The tests.


def wait_until(path: Path) -> None:
    eventually(path.exists, True, 120)


def check_interrupt(driver: DriverProcess, directory: Path) -> None:
    wait_until(directory / "writing")
    driver.interrupt()
    assert driver.wait_for("datasets") == []
    assert driver.wait_for("rows") is True
    assert driver.wait_for("scanned") == ROWS
    assert driver.wait() == 0
    eventually(driver.running, list[str]())


def test_ctrl_c_cancels_the_job_drops_its_dataset_and_leaves_the_driver_usable(
    server: ServerProcess, cluster: Place, tmp_path: Path
) -> None:
    arguments = (cluster.master, cluster.settings, server.location, str(tmp_path))
    with DriverProcess(interrupted_driver, *arguments) as driver:
        check_interrupt(driver, tmp_path)


def test_ctrl_c_in_local_mode_does_not_end_an_embedded_server(java_home: str, tmp_path: Path) -> None:
    with DriverProcess(interrupted_driver, "local[2]", {}, None, str(tmp_path)) as driver:
        check_interrupt(driver, tmp_path)


def test_what_a_killed_driver_leaves_ends_with_its_leases(
    server: ServerProcess, cluster: Place, tmp_path: Path
) -> None:
    with (
        DriverProcess(
            killed_driver, cluster.master, cluster.settings, server.location, str(tmp_path)
        ) as driver,
        ShuffleClient(server.location) as client,
    ):
        assert driver.wait_for("result") == ROWS
        wait_until(tmp_path / "writing")
        assert len(client.datasets("exchange/")) == 3
        driver.kill()
        eventually(lambda: [dataset.name for dataset in client.datasets()], list[str]())
        eventually(driver.running, list[str]())


def test_rows_are_right_while_executors_come_and_go_with_fresh_workers_of_limited_memory(
    server: ServerProcess, cluster: Place
) -> None:
    options = {
        "dynamicAllocation__enabled": "true",
        "dynamicAllocation__shuffleTracking__enabled": "true",
        "dynamicAllocation__shuffleTracking__timeout": "1s",
        "dynamicAllocation__executorIdleTimeout": "1s",
        "dynamicAllocation__schedulerBacklogTimeout": "1s",
        "python__worker__reuse": "false",
        "executor__pyspark__memory": "1g",
        "task__maxFailures": "1",
        "sql__adaptive__enabled": "false",
    }
    arguments = (cluster.master, cluster.settings, server.location, options)
    with DriverProcess(driver_without_executors, *arguments) as driver:
        assert driver.wait_for("rows") is True
        assert re.search(
            r"(?s)MemoryError.*raised in stage 1 \(mapInArrow too_much\)", driver.wait_for("error")
        )
        assert len(driver.wait_for("datasets")) == 1, "that of the result and not of the job that failed"
        assert driver.wait() == 0
        eventually(driver.running, list[str]())
