"""An exchange after which one partition is far larger than the others, and then a ``mapInArrow``.

    Spark     df.repartition(16, "key").mapInArrow(work)
    pipeline  the same by pipeline(df), or scan, .repartition(16, "key").mapInArrow(work)

Half of all rows have one key.

The second table has the largest task: the rows, MB and seconds of the function in one Spark task, all its calls
together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import pyarrow as pa

from tests.benchmarks.measure import table
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.contests import SPARK, Contest, both, files, report
from tests.benchmarks.on_spark.engines import Engines, Options

WORK = "task long, rows long, digest long, bytes long, seconds double"
PARTITIONS = 16
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


largest: dict[str, list[tuple[int, float, float]]] = {}
"""The rows, MB and seconds of each run's largest task, by subject."""


def main(arguments: list[str]) -> None:
    """Print the tables."""
    report("Skew: exchange → Python", CONTESTS, Options.parse("skew", arguments))
    rows = [
        # Without the comparison of a tenth and the cold run.
        [subject, *(f"{median(column):,.2f}" for column in zip(*runs[2:], strict=True))]
        for subject, runs in largest.items()
    ]
    table("Skew: the largest task", ["subject", "rows", "MB", "s"], rows)


def _sparks(engines: Engines, rows: int) -> Any:
    frame = engines.spark.read.parquet(str(data.skewed_parquet(rows)))
    return _answer(SPARK, frame.repartition(PARTITIONS, "key").mapInArrow(work, WORK))


def _ours(kind: str, engines: Engines, rows: int) -> Any:
    start = files(engines, kind, data.skewed_parquet(rows))
    return _answer(kind, start.repartition(PARTITIONS, "key").mapInArrow(work, WORK).toDF())


def _answer(subject: str, result: Any) -> tuple[int, int]:
    calls = result.collect()
    tasks: dict[int, list[float]] = {}
    for call in calls:
        task = tasks.setdefault(call.task, [0, 0, 0])
        for at, value in enumerate((call.rows, call.bytes / 1e6, call.seconds)):
            task[at] += value
    rows, size, taken = max(tasks.values(), key=lambda task: task[1])
    largest.setdefault(subject, []).append((int(rows), size, taken))
    return sum(call.rows for call in calls), sum(call.digest for call in calls) % (1 << 63)


CONTESTS = [
    Contest(
        "half in one key",
        20_000_000,
        {SPARK: _sparks, **both(_ours)},
    )
]
