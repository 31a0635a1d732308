"""Workers that are forked with their libraries imported are otherwise those of PySpark."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spark_client import ShuffleClient
from spark_client.executors.interpreter import FORKING
from tests.support.driver_process import DriverProcess, say, session
from tests.support.polling import eventually

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


def driver_without_settings() -> None:
    with session("local[2]", {}) as spark, ShuffleClient.embedded() as client:
        # One job has started Python, and another client starts no more.
        with ShuffleClient.embedded():
            eventually(lambda: [*spark.sparkContext.statusTracker().getJobIdsForGroup()], [0])
        result = client.pipeline(spark.range(8)).repartition(2, "id").toDF()
        say("rows", result.count())
        say("workers", spark.sparkContext.parallelize([0], 1).mapPartitions(drawn).collect()[0][3])
        context: Any = spark.sparkContext
        say("daemon", context._jsc.sc().conf().get("spark.python.daemon.module"))


@pytest.mark.long
def test_a_local_session_has_them_with_no_setting() -> None:
    with DriverProcess(driver_without_settings) as driver:
        assert driver.wait_for("rows") == 8
        assert driver.wait_for("workers") is True
        assert driver.wait_for("daemon") == FORKING
