"""Runs the tasks of a job, in Spark or in the driver.

Guarantee: :func:`run` returns one report of each task, of an attempt whose report reached the driver. The rows, their
partitions and their order are the same wherever the tasks run, because it is the same code.

Names of jobs
    On Spark Classic a name is the job's description in the web UI, in the place of the user's own, which is set again
    afterwards. Spark Connect has no descriptions: there it is a tag of the operation, for ``interruptTag`` and the
    UI's page of sessions.

Ctrl-C
    PySpark means to cancel the job that the driver waits for. But on Spark Classic its handler asks over the connection
    on which the main thread waits, which fails, and notebooks replace the handler. A job that goes on keeps its tasks'
    cores and writes to a dataset that is gone. Spark Connect's client cancels its operation itself.

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
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import count, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_client.arrow import array_over
from spark_client.executors import Portable, check_interpreter, in_forked_workers
from spark_client.pyspark_parts import (
    begin,
    collected,
    interrupts_kept,
    make_active,
    numbers_rdd,
    session_tag,
)
from spark_client.steps import SPARK_REPORTS, reports_of

from .job import Job, TaskNumbers, mapped
from .sealed import TaskWork, report
from .session_facts import is_on, is_pinned, job_tag, local_property
from .size_checks import without_needless_checks
from .tasks import Destination, ReadLimit

_log = logging.getLogger(__name__)
_ATTEMPT = "driver"
_DESCRIPTION = "spark.job.description"
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


_STARTING = "flight-shuffle: starts Python for the tasks to come"
_started: weakref.WeakSet[Any] = weakref.WeakSet()
"""The contexts of Spark."""

Keep = Callable[[str, object], None]
"""Keeps an object until a dataset is dropped."""


Destinations = Mapping[str, Destination]
"""Those of a job's datasets, by their names."""


def run(job: Job, destinations: Destinations, keep: Keep) -> list[Any]:
    """Run the job; the reports of its tasks. Raises PySparkException: it has failed."""
    if job.in_driver and (reports := reports_of_driver(job, destinations)) is not None:
        return reports
    spark = job.spark
    check_interpreter(spark)
    naming, cancelling = _naming_jobs(spark, job.name), cancelled_by_ctrl_c(spark)
    if (collect := numbered(job, destinations)) is not None:
        with naming, cancelling:
            return reports_of(collect())
    parts = [
        mapped(rows, Portable(partial(task.run, destinations[task.dataset])), SPARK_REPORTS)
        for rows, task in job.writes
    ]
    frame = _keeping_executors(job, destinations, reduce(DataFrame.unionAll, parts), keep)
    inputs = [rows for rows, task in job.writes if task.reading.source is None]
    with naming, cancelling, without_needless_checks(frame, len(parts), inputs):
        return reports_of(text for (text,) in frame.collect())


def _keeping_executors(job: Job, destinations: Destinations, reports: DataFrame, keep: Keep) -> DataFrame:
    """The reports of tasks, by way of a shuffle of Spark's where it takes idle executors away: it keeps those whose
    shuffled rows a DataFrame may still read, here until the datasets are dropped and the driver's JVM has collected
    its garbage.
    """
    if not _may_lose_executors(job.spark, destinations):
        return reports
    reports = reports.repartition(1)
    for dataset in destinations:
        keep(dataset, reports)
    return reports


def _may_lose_executors(spark: SparkSession, destinations: Destinations) -> bool:
    """Whether executors hold a dataset, and Spark takes idle ones away."""
    held = any(each.executors for each in destinations.values())
    return held and is_on(spark, "spark.dynamicAllocation.enabled")


@contextmanager
def _naming_jobs(spark: Any, name: str | None) -> Iterator[None]:
    """The jobs that this thread starts in the block have the name; None leaves them as they are."""
    if name is None:
        yield
    elif "connect" in type(spark).__module__:
        tag = name.replace(",", " ")  # which separates tags
        theirs = tag in spark.getTags()
        spark.addTag(tag)
        try:
            yield
        finally:
            if not theirs:
                spark.removeTag(tag)
    else:
        with local_property(spark.sparkContext, _DESCRIPTION, name):
            yield


@contextmanager
def cancelled_by_ctrl_c(spark: Any) -> Iterator[None]:
    """A ``KeyboardInterrupt`` in the block cancels the session's jobs, as PySpark's handler would. Their tasks may run
    for some seconds more. The session is the thread's active one again, without which Spark finds no source in Python
    to write to.
    """
    try:
        with interrupts_kept():
            yield
    except KeyboardInterrupt:
        # Not by a tag of the job: a new connection, which Spark Classic needs now, does not know the old one's tags.
        if "connect" not in type(spark).__module__:
            # A session that has ended cannot be asked, and has no jobs.
            with suppress(Exception):
                make_active(spark)
                spark.interruptAll()
        raise


def share_numbers(shares: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """The input of tasks that are run one after the other: the numbers of their shares."""
    for share in shares:
        yield pa.RecordBatch.from_arrays([array_over(np.array([share], np.int64))], names=["id"])


def reports_of_driver(job: Job, destinations: Destinations) -> list[Any] | None:
    """Run all tasks of the job; their reports, as Spark would give them. None: Spark's tasks are to do it. Each task
    reads a source.
    """
    known = all(each.servers for each in destinations.values())
    if not known or _may_lose_executors(job.spark, destinations):
        return None
    tasks = [task for _, task in job.writes]
    # As Spark numbers the tasks of a union (``WriteTask``).
    numbers = count() if any(len(task.reading.shares) > 1 for task in tasks) else repeat(0)
    limit = ReadLimit.of(tasks[0].reading.options.driver_bytes)
    reports: list[Any] = []
    try:
        for task in tasks:
            destination = replace(destinations[task.dataset], executors=None)
            for share in share_numbers(range(len(task.reading.shares))):
                producer, work = task.producer(next(numbers)), TaskWork(tasks=0)
                with closing(task.rows(iter([share]), work, limit.count)) as rows:
                    answer = task.write(destination, rows, producer, _ATTEMPT)
                reports.append(report(task.dataset, producer, _ATTEMPT, answer, work))
    except Exception as error:  # noqa: BLE001 - Spark's tasks raise it, if it is one of the rows
        _log.info("%s: left to Spark's tasks: %s", job.label, error)
        return None
    return reports


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
        of_query = 0 if all(tasks == 1 for tasks, _ in self.writes) else None
        for tasks, run in self.writes:
            if number < tasks:
                for batch in run(share_numbers([number]), of_query):
                    yield from batch.column(0).to_pylist()
                return
            number -= tasks


def numbered(job: Job, destinations: Destinations) -> Callable[[], list[Any]] | None:
    """Runs the job; gives its reports, in the order of the tasks. None: it has to be a query."""
    spark: Any = job.spark
    tasks = [
        (rows.tasks, partial(task.run, destinations[task.dataset]))
        for rows, task in job.writes
        if isinstance(rows, TaskNumbers)
    ]
    try:
        with interrupts_kept():
            if len(tasks) < len(job.writes) or _needs_query(spark, destinations):
                return None
            context = spark.sparkContext
            rdd = _numbers(spark, sum(count for count, _ in tasks), NumberedTasks(tasks))
            tag = session_tag(spark)
    except Exception as error:  # noqa: BLE001 - the query raises what is an error of the function
        _log.info("a query runs the tasks: %s", error)
        return None

    def collect() -> list[Any]:
        with job_tag(context, tag):
            return collected(rdd)

    return collect


def _numbers(spark: Any, tasks: int, function: NumberedTasks) -> Any:
    """The RDD of these tasks, in the workers of queries."""
    added = _FOR_WORKERS if is_on(spark, _SIMPLIFIED) else {}
    with in_forked_workers(spark):
        return numbers_rdd(spark.sparkContext, tasks, Portable(function), added)


def start_ahead() -> None:
    """Let Spark do in a thread what the first job of the active session waits for, if its master is local: start
    Python, by a job of one empty task, and load the classes that plan a query. Once for an application. What fails is
    left to that job.
    """
    # Also of a session whose JVM is gone: the caller's server starts all the same.
    with suppress(Exception):
        spark: Any = SparkSession.getActiveSession()
        if spark is None or not is_pinned(spark) or not str(spark.sparkContext.master).startswith("local"):
            return
        context = spark.sparkContext
        if context not in _started:
            _started.add(context)
            threading.Thread(target=_start, args=(spark,), name="starts Spark's workers", daemon=True).start()


def _start(spark: Any) -> None:
    # A thread of its own has none of the groups and tags of the caller's jobs.
    with suppress(Exception), local_property(spark.sparkContext, _DESCRIPTION, _STARTING):
        begin(_numbers(spark, 1, NumberedTasks([])))
        spark.range(1)._jdf.queryExecution().executedPlan()


def _needs_query(spark: Any, destinations: Destinations) -> bool:
    if not is_pinned(spark) or _may_lose_executors(spark, destinations):
        return True
    return bool(spark.getTags()) or any(is_on(spark, name) for name in _OF_QUERIES)
