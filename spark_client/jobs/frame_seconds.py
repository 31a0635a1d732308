"""The seconds inside the stages that Spark runs in jobs of its own, when it uses a pipeline's DataFrame.

Guarantee: a :class:`FrameSeconds` has the sums over all tasks, of every job so far, that have read their rows to the
end. On Spark Classic: tasks add theirs to an accumulator, of which a SparkContext has one, because PySpark never
forgets any. On Spark Connect, which has no accumulators, there are no seconds.

A run's seconds are released with the last reference to its object; later reports of its tasks are dropped.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark import AccumulatorParam, SparkContext
from pyspark.sql import SparkSession

from spark_client.executors import Portable, ShownFromUsers
from spark_client.steps import Pass, Stage, run

from .task_reports import TaskWork

Sums = dict[str, dict[str, float]]
"""Of each run by its key: the seconds of each stage by its name."""

_lock = threading.Lock()
_accumulators: weakref.WeakKeyDictionary[SparkContext, Any] = weakref.WeakKeyDictionary()


class _Adding(AccumulatorParam[Sums]):
    """In a task, and in Spark: the sums of several."""

    def zero(self, value: Sums) -> Sums:  # noqa: ARG002 - PySpark's face
        return {}

    def addInPlace(self, value1: Sums, value2: Sums) -> Sums:  # noqa: N802 - PySpark's name
        for key, seconds in value2.items():
            known = value1.setdefault(key, {})
            for stage, each in seconds.items():
                known[stage] = known.get(stage, 0.0) + each
        return value1


class _Sorting(_Adding):
    """In the driver: tasks' seconds go to the runs that are there, and stay nowhere else."""

    def __init__(self) -> None:
        self.runs: weakref.WeakValueDictionary[str, FrameSeconds] = weakref.WeakValueDictionary()

    def addInPlace(self, value1: Sums, value2: Sums) -> Sums:  # noqa: N802 - PySpark's name
        for key, seconds in value2.items():
            run = self.runs.get(key)
            if run is not None:
                run.add(seconds)
        return value1

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Adding, ())


class FrameSeconds:
    """The seconds of one DataFrame."""

    def __init__(self, spark: SparkSession) -> None:
        self._key = uuid.uuid4().hex
        self._sum: dict[str, float] = {}
        self._accumulator = _accumulator_of(spark)
        if self._accumulator is not None:
            self._accumulator.accum_param.runs[self._key] = self

    def add(self, seconds: dict[str, float]) -> None:
        with _lock:
            for stage, each in seconds.items():
                self._sum[stage] = self._sum.get(stage, 0.0) + each

    @property
    def by_stage(self) -> dict[str, float]:
        """The seconds of each stage by its name, and those of ``READING``; empty before the first task has ended."""
        with _lock:
            return dict(self._sum)

    @property
    def counter(self) -> Counter:
        """For the function of a task."""
        return Counter(self._key, self._accumulator)


class Counter:
    """Adds a task's seconds. It is pickled into the task."""

    def __init__(self, key: str, accumulator: Any) -> None:
        self._key = key
        self._accumulator = accumulator

    def counted(self, batches: Callable[[TaskWork | None], Iterator[Any]]) -> Iterator[Any]:
        """The batches of ``batches(work)``, whose clock is read at their end; without an accumulator of
        ``batches(None)``.
        """
        if self._accumulator is None:
            yield from batches(None)
            return
        work = TaskWork()
        try:
            yield from batches(work)
        finally:
            self._accumulator.add({self._key: work.clock.seconds})

    def running(self, stages: Sequence[Stage], how: Pass) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """The function with which Spark's tasks run the stages over a DataFrame's batches."""
        return Portable(ShownFromUsers(partial(_run, self, stages, how)))


def _run(counter: Counter, stages: Sequence[Stage], how: Pass, batches: Iterator[Any]) -> Iterator[Any]:
    return counter.counted(
        lambda work: run(stages, batches, how if work is None else replace(how, clock=work.clock))
    )


def _accumulator_of(spark: SparkSession) -> Any:
    if "connect" in type(spark).__module__:
        return None
    context = spark.sparkContext
    with _lock:
        if context not in _accumulators:
            _accumulators[context] = context.accumulator({}, _Sorting())
        return _accumulators[context]
