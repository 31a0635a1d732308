"""The tasks of a job without a query of Spark's: in the driver, or in Spark's workers by their numbers alone.

Guarantee: the rows, their partitions and their order are those of the same tasks in Spark, because it is the same code.

In the driver
    It runs those that read less than a job of Spark's costs. Each task is a producer with one attempt, which the seal
    names. What fails here is left to Spark's tasks, whose attempts the seal names then. So no error is one of the
    driver's own, and a server that is away for a moment costs nothing. The tasks run one after the other in the
    caller's thread, within the budgets of a task (``spill``), also those of other threads beside them. Ctrl-C ends them
    like any code of the program: their puts are abandoned, their reads closed.

Memory
    What the tasks read, and what each stage makes of it, is counted on the way (``ReadLimit``): a job that reads far
    more than it was taken for, or whose join makes very many rows, is left to Spark's tasks, too.

Not here
    A function of the user's: the caller gives only stages that are ``ours``. And nothing that a worker's process sets
    for itself: its allocator's thresholds, its frozen garbage, its span.

Servers in executors
    The driver is in no executor. It writes to servers that tasks have started before; where it knows none, or where
    Spark may take their executors away because none of its own data is there, Spark's tasks write.

By their numbers
    The plan of a query costs as much as its tasks. These are those of the query: they have the same numbers, workers,
    environment and errors, and the job is cancelled by the same calls, such as ``spark.interruptAll()``. The page of
    queries in Spark's UI does not show it; the page of jobs does, under the same description.

Where the query remains
    =====================================  =============================================================
    a DataFrame is among the input         it is one
    Spark Connect                          it has no RDDs
    the thread has tags of operations      only queries have them
    (``spark.addTag``)
    properties are not of the thread       the job's tag would be another one's
    (``PYSPARK_PIN_THREAD=false``)
    executors hold the dataset, and Spark  ``shuffles`` keeps them by a shuffle of the query
    takes idle ones away
    the session has a setting of           only the workers of queries have it: logs, hidden or longer tracebacks, an
    ``_OF_QUERIES``                        end when they are idle or have crashed
    the platform allows queries only       there are some where several users share a driver
    =====================================  =============================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from spark_client.arrow import array_over
from spark_client.executors import Portable, ShownFromUsers
from spark_client.pyspark_parts import collected, interrupts_kept, numbers_rdd, session_tag

from .sealed import TaskWork, report
from .session_facts import is_on, is_pinned, local_property
from .tasks import ReadLimit, WriteTask
from .write_job import Target, TaskNumbers, TaskRows

_log = logging.getLogger(__name__)
_ATTEMPT = "driver"
_TAGS = "spark.job.tags"
_SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
_FOR_WORKERS = {"SPARK_SIMPLIFIED_TRACEBACK": "1"}
"""What a query adds to a worker's environment where this setting is on."""
_OF_QUERIES = (
    "spark.sql.pyspark.worker.logging.enabled",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled",
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout",
    "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled",
)


def reports_of_driver(spark: SparkSession, targets: Sequence[Target], label: str) -> list[Any] | None:
    """Run all tasks of the job; their reports, as Spark would give them. None: Spark's tasks are to do it. Each task
    reads a source.
    """
    if not all(_may_write(spark, task) for target in targets for _, task in target.writes):
        return None
    tasks = [task for target in targets for _, task in target.writes]
    # As Spark numbers the tasks of a union (``WriteTask``).
    numbers = count() if any(_shares(task) > 1 for task in tasks) else repeat(0)
    reads = ReadLimit.of(tasks[0].server.reading.driver_bytes)
    try:
        return [
            row for task in tasks for row in _reports(replace(task, executors=None, reads=reads), numbers)
        ]
    except Exception as error:  # noqa: BLE001 - Spark's tasks raise it, if it is one of the rows
        _log.info("%s: left to Spark's tasks: %s", label, error)
        return None


def share_numbers(shares: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """The input of tasks that are run one after the other: the numbers of their shares."""
    for share in shares:
        yield pa.RecordBatch.from_arrays([array_over(np.array([share], np.int64))], names=["id"])


def _may_write(spark: SparkSession, task: WriteTask) -> bool:
    if task.executors is None:
        return True
    return bool(task.servers) and not is_on(spark, "spark.dynamicAllocation.enabled")


def _shares(task: WriteTask) -> int:
    assert task.shares is not None
    return len(task.shares)


def _reports(task: WriteTask, numbers: Iterator[int]) -> Iterator[Any]:
    for share in share_numbers(range(_shares(task))):
        producer, work = task.producer(next(numbers)), TaskWork(tasks=0)
        with closing(task.rows(iter([share]), work)) as rows:
            answer = task.write(rows, producer, _ATTEMPT)
        yield from report(task.target, producer, _ATTEMPT, answer, work).to_pylist()


Run = Callable[..., Iterator[Any]]


class NumberedTasks:
    """What each task of a job does, sent to all of them. ``writes``: how many tasks each write has, and its own."""

    def __init__(self, writes: Sequence[tuple[int, Run]]) -> None:
        self.writes = [*writes]

    def __call__(self, number: int, nothing: Iterator[Any]) -> Iterator[Any]:
        """The report of the job's task of this number; those of a write follow those of the one before."""
        for _ in nothing:
            pass
        # A query runs a union of writes of one task each in one task: round robin begins by its number.
        given = 0 if all(tasks == 1 for tasks, _ in self.writes) else None
        for tasks, run in self.writes:
            if number < tasks:
                for batch in run(share_numbers([number]), given):
                    yield from batch.to_pylist()
                return
            number -= tasks


def numbered(spark: SparkSession, targets: Sequence[Target]) -> Callable[[], list[Any]] | None:
    """Runs the job; gives its reports, in the order of the tasks. None: it has to be a query."""
    writes = [each for target in targets for each in target.writes]
    tasks = [(rows.tasks, task.run) for rows, task in writes if isinstance(rows, TaskNumbers)]
    try:
        with interrupts_kept():
            may_be = len(tasks) == len(writes) and _may_be(spark, writes)
            return _prepared(spark, tasks) if may_be else None
    except Exception as error:  # noqa: BLE001 - the query raises what is an error of the function
        _log.info("a query runs the tasks: %s", error)
        return None


def _prepared(spark: SparkSession, tasks: Sequence[tuple[int, Run]]) -> Callable[[], list[Any]]:
    context: Any = spark.sparkContext
    function = Portable(ShownFromUsers(NumberedTasks(tasks)))
    added = _FOR_WORKERS if is_on(spark, _SIMPLIFIED) else {}
    rdd = numbers_rdd(context, sum(count for count, _ in tasks), function, added)
    tags = _with_tag(context.getLocalProperty(_TAGS), session_tag(spark))

    def run() -> list[Any]:
        with local_property(context, _TAGS, tags):
            return collected(rdd)

    return run


def _may_be(spark: Any, writes: Sequence[tuple[TaskRows, WriteTask]]) -> bool:
    if not is_pinned(spark):
        return False
    if any(task.executors for _, task in writes) and is_on(spark, "spark.dynamicAllocation.enabled"):
        return False
    return not spark.getTags() and not any(is_on(spark, name) for name in _OF_QUERIES)


def _with_tag(tags: str | None, tag: str) -> str:
    given = tags.split(",") if tags else []
    return ",".join(dict.fromkeys([*given, tag]))
