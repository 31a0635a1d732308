"""An exchange after which one partition is far larger than the others, and then a ``mapInArrow``.

    Spark     df.repartition(n, "key").mapInArrow(work)
    pipeline  the same by pipeline(df), or scan, .repartition(n, "key").mapInArrow(work)

``half in one key``: 16 partitions, and half of all rows have one key. ``8,000 x the median``: 400 partitions, and one
key has so many times the rows of the median partition.

The second table has the largest task: the rows, MB and seconds of the function in one Spark task, all its calls
together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from tests.benchmarks.measure import table
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.contests import FRAME, SCAN, SPARK, Contest, report
from tests.benchmarks.on_spark.engines import Engines, Options

WORK = "task long, rows long, digest long, bytes long, seconds double"
PASSES = 5
"""The function makes the checksum of each batch so many times, or reading would be all there is to distribute."""


def work(batches: of.Batches) -> Iterator[Any]:
    """The checksum of a call's rows, the task that made the call, and how much it was."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    started, rows, total, size = time.perf_counter(), 0, 0, 0
    for batch in batches:
        rows, size = rows + len(batch), size + batch.nbytes
        for _ in range(PASSES):
            digest = next(of.digest(iter([batch]))).column("digest")[0].as_py()
        total += digest
    found = [context.taskAttemptId(), rows, total % (1 << 63), size, time.perf_counter() - started]
    yield pa.record_batch([[value] for value in found], names=["task", "rows", "digest", "bytes", "seconds"])


@dataclass(frozen=True)
class Job:
    """``large`` of the rows have one key. ``largest`` are the rows, MB and seconds of each run's largest task."""

    name: str
    rows: int
    large: float
    partitions: int
    largest: dict[str, list[tuple[int, float, float]]] = field(default_factory=dict)

    def contest(self) -> Contest:
        """The job by all subjects."""
        ours = {kind: partial(self._ours, kind) for kind in (FRAME, SCAN)}
        return Contest(self.name, self.rows, {SPARK: self._sparks, **ours})

    def tasks(self) -> list[list[str]]:
        """The rows of the second table, without the comparison of a tenth and the cold run."""
        return [
            [self.name, subject, *(f"{median(column):,.2f}" for column in zip(*runs[2:], strict=True))]
            for subject, runs in self.largest.items()
        ]

    def _files(self, rows: int) -> Path:
        return data.skewed_parquet(rows, int(rows * self.large), 1 << 30)

    def _sparks(self, engines: Engines, rows: int) -> Any:
        frame = engines.spark.read.parquet(str(self._files(rows)))
        return self._answer(SPARK, frame.repartition(self.partitions, "key").mapInArrow(work, WORK))

    def _ours(self, kind: str, engines: Engines, rows: int) -> Any:
        if kind == SCAN:
            start = engines.shuffle.scan(self._files(rows), spark=engines.spark)
        else:
            start = engines.shuffle.pipeline(engines.spark.read.parquet(str(self._files(rows))))
        return self._answer(kind, start.repartition(self.partitions, "key").mapInArrow(work, WORK).toDF())

    def _answer(self, subject: str, result: Any) -> tuple[int, int]:
        calls = result.collect()
        tasks: dict[int, list[float]] = {}
        for call in calls:
            task = tasks.setdefault(call.task, [0, 0, 0])
            for at, value in enumerate((call.rows, call.bytes / 1e6, call.seconds)):
                task[at] += value
        rows, size, taken = max(tasks.values(), key=lambda task: task[1])
        self.largest.setdefault(subject, []).append((int(rows), size, taken))
        return sum(call.rows for call in calls), sum(call.digest for call in calls) % (1 << 63)


def main(arguments: list[str]) -> None:
    """Print the tables."""
    options = Options.parse("skew", arguments)
    jobs = [
        Job("half in one key", 20_000_000, 1 / 2, 16),
        # 399 partitions share a twenty-first: one has 8,000 times the rows of each of them, give or take chance.
        Job("8,000 x the median", 5_000_000, 20 / 21, 400),
    ]
    report("Skew: exchange → Python", [job.contest() for job in jobs], options)
    rows = [row for job in jobs for row in job.tasks()]
    table("Skew: the largest task", ["job", "subject", "rows", "MB", "s"], rows)
