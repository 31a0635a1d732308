"""The line that a notebook shows while a job runs: its tasks, as Spark counts them, and what has arrived."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_client import Pipeline, ShuffleClient
from spark_client.jobs import progress
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook would show, one text after the other."""
    texts: list[str] = []

    class Notebook:
        def show(self, text: str) -> None:
            texts.append(text)

    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setattr(progress, "_Notebook", Notebook)
    return texts


def held(df: Any, client: ShuffleClient, gate: Path) -> Pipeline:
    """An exchange whose tasks wait for a file, but for the first one."""
    path = str(gate)

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        while context is not None and context.partitionId() and not Path(path).exists():
            time.sleep(0.01)
        yield from batches

    return client.pipeline(df).mapInArrow(wait, "id long").repartition(3, "id")


def test_the_line_counts_the_tasks_that_are_done_and_that_run(
    spark: SparkSession, client: ShuffleClient, shown: list[str], tmp_path: Path
) -> None:
    plan = held(spark.range(0, 100, 1, 4), client, tmp_path / "gate")
    # Another job beside it is not counted.
    threading.Thread(target=lambda: spark.range(0, 7, 1, 7).count()).start()
    run = threading.Thread(target=plan.toDF)
    run.start()
    counted = r"repartition\(3, 'id'\).*  1 of 4 tasks, 2 running  \d+ rows"
    eventually(lambda: bool(shown) and re.match(counted, shown[-1]) is not None, True)
    (tmp_path / "gate").touch()
    run.join()
    assert re.match(r"repartition\(3, 'id'\).*  4 tasks  100 rows  [\d.]+ KiB  \d+ s$", shown[-1])
    tags = spark.sparkContext.getLocalProperty("spark.job.tags")
    assert not tags or "progress" not in tags


@pytest.mark.usefixtures("spark")
def test_a_job_that_the_driver_runs_has_no_tasks(
    server: ServerProcess, shown: list[str], tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "rows.parquet")
    with ShuffleClient(server.location) as client:
        client.scan(tmp_path / "rows.parquet").repartition(2, "id").toArrow()
    assert re.match(r"repartition\(2, 'id'\).*  10 rows", shown[-1])
    assert "task" not in shown[-1]
