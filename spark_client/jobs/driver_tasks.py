"""The tasks of a job that the driver runs itself, because they read less than a job of Spark's costs.

Guarantee: the rows, their partitions and their order are those of the same tasks in Spark, because it is the same code:
each task is a producer with one attempt, which the seal names. What fails here is left to Spark's tasks, whose attempts
the seal names then. So no error is one of the driver's own, and a server that is away for a moment costs nothing.

The tasks run one after the other in the caller's thread, within the budgets of a task (``spill``), also those of other
threads beside them. Ctrl-C ends them like any code of the program: their puts are abandoned, their reads closed.

Memory
    What the tasks read, and what each stage makes of it, is counted on the way (``ReadLimit``): a job that reads far
    more than it was taken for, or whose join makes very many rows, is left to Spark's tasks, too.

Not here
    A function of the user's: the caller gives only stages that are ``ours``. And nothing that a worker's process sets
    for itself: its allocator's thresholds, its frozen garbage, its span.

Servers in executors
    The driver is in no executor. It writes to servers that tasks have started before; where it knows none, or where
    Spark may take their executors away because none of its own data is there, Spark's tasks write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from spark_client.arrow import array_over

from .session_facts import is_on
from .task_reports import TaskWork, report
from .tasks import ReadLimit, WriteTask
from .write_job import Target

_log = logging.getLogger(__name__)
_ATTEMPT = "driver"


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
