"""Workers that are forked with their libraries imported are otherwise those of PySpark."""

from __future__ import annotations

import os
import random
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from spark_client.jobs import runner
from tests.support.polling import eventually
from tests.support.spark_status import jobs, status_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def drawn(_: Iterable[int]) -> Iterator[tuple[int, float, float, bool]]:
    yield os.getpid(), float(np.random.random()), random.random(), "spark_client.jobs.tasks" in sys.modules


def test_each_draws_numbers_of_its_own(spark: SparkSession) -> None:
    # Tasks of a barrier run at once, each in a worker of its own.
    rows = spark.sparkContext.parallelize([0, 1], 2).barrier().mapPartitions(drawn).collect()
    pids, of_numpy, of_python, imported = zip(*rows, strict=True)
    assert len({*pids}) == len({*of_numpy}) == len({*of_python}) == 2
    assert all(imported)


def daemon(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    parent = psutil.Process().parent()
    assert parent is not None
    yield pa.record_batch({"daemon": [" ".join(parent.cmdline()[1:])]})


def test_they_run_a_clients_jobs_and_no_other_functions(spark: SparkSession, client: ShuffleClient) -> None:
    settings, name = spark.sparkContext._jsc.sc().conf(), "spark.python.daemon.module"
    module = settings.get(name)
    settings.remove(name)
    try:
        rows = spark.range(0, 1, 1, 1)
        ours = client.pipeline(rows).mapInArrow(daemon, "daemon string")
        # In a task that writes, and in one that gives Spark the rows.
        for result in (ours.repartition(2).toDF(), ours.toDF()):
            assert result.collect()[0].daemon.endswith("/python -m pyspark.daemon pyspark.worker")
        theirs = rows.mapInArrow(daemon, "daemon string").collect()
        assert theirs[0].daemon == "-m pyspark.daemon pyspark.worker"
    finally:
        settings.set(name, module)


def test_a_job_starts_them_once_beside_an_embedded_server(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_started", weakref.WeakSet())
    context = spark.sparkContext
    context.setJobGroup("the user's", "of the caller")
    before = jobs(spark)
    with ShuffleClient.embedded(), ShuffleClient.embedded():
        eventually(lambda: jobs(spark), before + 1)
    status_of(spark)
    assert not context.statusTracker().getJobIdsForGroup("the user's")
    assert jobs(spark) == before + 1
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None takes it away
