"""Spark measures a batch before each row that it adds for Python: where rows cannot exceed the limit, it need not.

Guarantee: tasks get the batches that they would get otherwise. Measuring takes a third or more of the JVM's time for
rows of a few numbers. So a job of Spark Classic runs without ``spark.sql.execution.arrow.maxBytesPerBatch``, by a
property of the calling thread, if for each DataFrame of it ``maxRecordsPerBatch`` rows are below that limit, because
every column has a fixed width, and if its plan shows no other function in Python, whose input may be wider: in itself,
in what it caches, or in an RDD, which a plan does not show.

A limit that the session has set itself takes precedence in the tasks: then nothing changes. On Spark Connect there are
no such properties.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as of
from pyspark.sql.types import StructType

from spark_client.steps import BatchLimits

from .job import TaskRows
from .session_facts import is_pinned, local_property
from .spark_types import batch_limits

_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = "2147483647"
_COLUMN_BYTES = 64
"""The most by which a column's buffers are rounded up."""
_PYTHON = re.compile("Py|Pandas|Arrow|RDD|InMemory", re.IGNORECASE)
"""In the names of such operators. A scan's name ends with its table's, of which the worst is that the limit stays."""
_BITS = {
    of.NullType: 0,
    of.BooleanType: 1,
    of.ByteType: 8,
    of.ShortType: 16,
    of.IntegerType: 32,
    of.LongType: 64,
    of.FloatType: 32,
    of.DoubleType: 64,
    of.DecimalType: 128,
    of.DateType: 32,
    of.TimestampType: 64,
    of.TimestampNTZType: 64,
    of.DayTimeIntervalType: 64,
}


@contextlib.contextmanager
def without_needless_checks(job: DataFrame, functions: int, inputs: Sequence[TaskRows]) -> Iterator[None]:
    """The job that this thread runs in the block runs without the limit of bytes if the module says so. It has so many
    functions in Python, of which those over ``inputs`` get the rows of DataFrames, and the others numbers.
    """
    if not _are_needless(job, functions, inputs):
        yield
        return
    with local_property(job.sparkSession.sparkContext, _LIMIT, _NO_LIMIT):
        yield


def _are_needless(job: DataFrame, functions: int, inputs: Sequence[TaskRows]) -> bool:
    spark: Any = job.sparkSession
    if not inputs or not is_pinned(spark):
        return False
    limits = batch_limits(spark)
    # The plan is made here, and run by the job.
    below = all(isinstance(each, DataFrame) and stays_below(limits, each.schema) for each in inputs)
    return below and _python_nodes(job) == functions


def stays_below(limits: BatchLimits, struct: StructType) -> bool:
    """Whether as many rows as a batch may have are never as large as it may be."""
    bits = [_BITS.get(type(field.dataType)) for field in struct]  # None if values differ
    known = [each for each in bits if each is not None]
    if len(known) < len(bits) or limits.rows <= 0:
        return False
    most_bytes = limits.rows * sum(each + 1 for each in [0, *known]) // 8 + _COLUMN_BYTES * (1 + len(known))
    return most_bytes < limits.size_bytes


def _python_nodes(job: Any) -> int:
    """How many operators of the job's plan, with what it caches and asks, are of Python, or may hide some."""
    plan = job._jdf.queryExecution().executedPlan()
    nodes = [job.sparkSession._jvm.org.apache.spark.sql.execution.SparkPlanInfo.fromSparkPlan(plan)]
    for node in nodes:
        children = node.children()
        nodes.extend(children.apply(number) for number in range(children.size()))
    return sum(_PYTHON.search(node.nodeName()) is not None for node in nodes)
