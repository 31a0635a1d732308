"""Drivers as processes of their own: interrupted, and without executors; no process that they started is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
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
from tests.support.spark_cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROWS = 2000


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


def interrupted_driver(directory: str) -> None:
    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        yield from wait_for_ever(Path(directory), batches)

    with session("local[2]", {}) as spark, ShuffleClient.embedded() as client:
        pipeline = client.pipeline(spark.range(0, ROWS, 1, 4))
        try:
            pipeline.mapInArrow(waits, "id long").repartition(3, "id").toDF()
        except KeyboardInterrupt:
            say("datasets", [dataset.name for dataset in client.datasets()])
            jobs = spark.sparkContext.statusTracker()
            eventually(lambda: len(jobs.getActiveJobsIds()), 0)
        say("rows", right(pipeline.mapInArrow(same, "id long").repartition(3, "id").toDF().collect()))
        # py4j has connected this thread anew, to one of the JVM that knew no active session.
        path = str(Path(directory, "numbers.parquet"))
        pq.write_table(pa.table({"id": range(ROWS)}), path)
        say("scanned", client.scan(path).count())


def interrupted_writer(directory: str) -> None:
    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        yield from wait_for_ever(Path(directory), batches)

    with session("local[2]", {}) as spark, ShuffleClient.embedded() as client:
        client.register(spark)
        numbers = spark.range(0, ROWS, 1, 2)
        try:
            client.pipeline(numbers).mapInArrow(waits, "id long").repartition(3, "id").toDF()
        except KeyboardInterrupt:
            numbers.write.format("flight").mode("append").save("numbers")
        say("rows", [dataset.rows for dataset in client.datasets("numbers")])


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
        pipeline = client.pipeline(df).mapInArrow(same, "id long, k long").repartition(5, "k")
        placed = (
            pipeline.groupBy("k").applyInArrow(total, "k long, ids array<long>").repartition(2, "k").toDF()
        )
        eventually(executors, 0)
        expected = [(k, list(range(k, ROWS, 10))) for k in range(10)]
        say("rows", sorted((row.k, list(row.ids)) for row in placed.collect()) == expected)
        with pytest.raises(PythonException) as caught:
            client.pipeline(spark.range(9)).mapInArrow(too_much, "id long").repartition(1).toDF()
        say("error", str(caught.value))
        say("datasets", [dataset.name for dataset in client.datasets()])


# The tests.


def test_ctrl_c_cancels_the_job_drops_its_dataset_and_leaves_driver_and_embedded_server_usable(
    java_home: str, tmp_path: Path
) -> None:
    with DriverProcess(interrupted_driver, str(tmp_path)) as driver:
        eventually((tmp_path / "writing").exists, True)
        driver.interrupt()
        assert driver.wait_for("datasets") == []
        assert driver.wait_for("rows") is True
        assert driver.wait_for("scanned") == ROWS
        assert driver.wait() == 0
        eventually(driver.running, list[str]())


def test_after_ctrl_c_the_thread_writes_to_a_source_in_python(java_home: str, tmp_path: Path) -> None:
    with DriverProcess(interrupted_writer, str(tmp_path)) as driver:
        eventually((tmp_path / "writing").exists, True)
        driver.interrupt()
        assert driver.wait_for("rows") == [ROWS]
        assert driver.wait() == 0


def test_rows_are_right_while_executors_come_and_go_with_fresh_workers_of_limited_memory(
    flight_server_process: Callable[..., ServerProcess], cluster: Cluster
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
    location = flight_server_process(http_port=0).location
    with ShuffleClient(location) as client:
        before = held(client)
    with DriverProcess(
        driver_without_executors, cluster.master, cluster.settings, location, options
    ) as driver:
        assert driver.wait_for("rows") is True
        assert re.search(
            r"(?s)MemoryError.*raised in stage 1 \(mapInArrow too_much\)", driver.wait_for("error")
        )
        assert len(driver.wait_for("datasets")) == 1, "that of the result and not of the job that failed"
        assert driver.wait() == 0
        eventually(driver.running, list[str]())
    with ShuffleClient(location) as client:
        eventually(lambda: held(client), before)
