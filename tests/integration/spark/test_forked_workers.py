"""Workers that are forked with their libraries imported are otherwise those of PySpark."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

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
