"""Input -> Python stage -> repartition(16) -> Python stage, ours against Spark's own shuffle, and where our time goes.

    ours    scan(files) or pipeline(df), then .mapInArrow(first).repartition(16, "key").mapInArrow(second).toDF()
    Spark   df.mapInArrow(first).repartition(16, "key").mapInArrow(second)

``exchange, scan`` reads the files in Python, ``exchange`` takes a DataFrame, ``exchange, pipelined`` one that Spark
feeds as in ``Spark, pipelined``. Counts, keys and sizes are compared in every round; all values of all columns, and
in which partition each row is, on a tenth of the data before the first round.

Where the time goes is found by leaving parts out, in jobs of their own; so a part has its share of the fixed costs,
and a part that overlaps another one is shown shorter than it is. With five rounds the job of 20 M rows from Parquet
takes half an hour: five subjects, each six times, and then the parts; ``--scale 0.5`` takes half of it.

    feed        the input, and Spark's way into Python; nothing else is done with it
    stage       floor less feed: both functions
    partition   hashing the keys and gathering each partition's rows, as the writer does
    write       the rest of the first job: frames, checksums, compression, sending; what the server does with them
    seal        the driver's call after it
    read        the second job: receiving and the second function
    floor       feed and stage: the job if its rows needed no exchange
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from spark_client.arrow import Coalescer
from spark_client.jobs import WRITE_BUDGET_BYTES, ByKeys
from spark_client.pipeline import Pipeline
from spark_client.servers import DriverLoop
from tests.benchmarks.measure import Subject, measure, table
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.engines import (
    COLUMNS,
    Engines,
    Laps,
    Options,
    compared,
    rows_of,
    same,
    seconds,
)

PARTITIONS = 16
TASKS = 8
PART_ROUNDS = 3
SCAN, FRAME, FED = "exchange, scan", "exchange", "exchange, pipelined"
COUNTING, CHECKING = (of.second, of.SECOND), (of.digest, of.DIGEST)
PARTS = ("feed", "first", "floor", "partitioned")


@dataclass(frozen=True)
class Job:
    """``rows`` of ``source``: expressions over ``spark.range``, or what writes Parquet files of so many rows.

    ``elements`` is how many bytes or values the last column has in each row.
    """

    name: str
    rows: int
    source: tuple[str, ...] | Callable[[int], Path]
    first: of.Stage
    schema: str
    row_bytes: int
    elements: int = 0

    def frame(self, engines: Engines) -> Any:
        """The input as a DataFrame."""
        if callable(self.source):
            return engines.spark.read.parquet(str(self.source(self.rows)))
        return engines.spark.range(0, self.rows, 1, TASKS).selectExpr(*self.source)

    def start(self, engines: Engines, kind: str) -> Pipeline:
        """The input as a pipeline."""
        if kind == SCAN:
            assert callable(self.source)
            return engines.shuffle.scan(self.source(self.rows), spark=engines.spark)
        return engines.shuffle.pipeline(self.frame(engines))


JOBS = [
    Job("Parquet, 20 M x 4", 20_000_000, data.named_parquet, of.named, of.NAMED, 40, 16),
    Job(
        "range, 1 M x 256 floats",
        1_000_000,
        ("id",),
        of.vectors,
        of.VECTORS,
        8 + 4 * of.WIDTH,
        of.WIDTH,
    ),
]


def main(arguments: list[str]) -> None:
    """Print the tables."""
    report("Pipelines", JOBS, Options.parse("pipelines", arguments))


def report(title: str, jobs: Sequence[Job], options: Options) -> None:
    """Run the jobs and print the tables."""
    options.announce(title, f"local[2], {PARTITIONS} partitions")
    rows: list[list[str]] = []
    where: list[list[str]] = []
    with Engines() as engines:
        for job in jobs:
            if options.wants(job.name):
                scaled = replace(job, rows=max(1000, int(job.rows * options.scale)))
                _check(engines, replace(scaled, rows=scaled.rows // 10))
                subjects, laps = _measured(engines, scaled, options)
                rows += rows_of(job.name, subjects)
                for kind, lap in laps.items():
                    where.append([job.name, kind, *_where(engines, scaled, kind, lap, options)])
    table(f"{title}: Python → exchange → Python", COLUMNS, rows)
    columns = ["job", "input", "feed", "stage", "partition", "write", "seal", "read", "all", "floor"]
    table(f"{title}: where the seconds go", columns, where)


def _kinds(job: Job) -> tuple[str, ...]:
    return (FRAME, FED, SCAN) if callable(job.source) else (FRAME, FED)


def sparks(engines: Engines, job: Job, last: tuple[of.Stage, str], *, pipelined: bool) -> Sequence[Any]:
    """The job by Spark alone."""
    with engines.pipelined() if pipelined else nullcontext():
        first = job.frame(engines).mapInArrow(job.first, job.schema)
        found: Sequence[Any] = first.repartition(PARTITIONS, "key").mapInArrow(*last).collect()
    return found


def ours(engines: Engines, job: Job, kind: str, last: tuple[of.Stage, str], laps: Laps) -> Sequence[Any]:
    """The job by an exchange; its dataset is to be released by ``laps.end``."""
    started = time.perf_counter()
    with engines.pipelined() if kind == FED else nullcontext(), laps.of_calls("seal", DriverLoop, "_sealed"):
        first = job.start(engines, kind).mapInArrow(job.first, job.schema)
        result = first.repartition(PARTITIONS, "key").mapInArrow(*last).toDF()
        written = time.perf_counter()
        found: Sequence[Any] = result.collect()
    laps.add("write", written - started)
    laps.add("read", time.perf_counter() - written)
    laps.at_end(partial(engines.shuffle.release, result))
    return found


def _check(engines: Engines, job: Job) -> None:
    """Raise unless all subjects give the same rows in the same partitions."""
    results = {
        f"Spark, pipelined={pipelined}": sparks(engines, job, CHECKING, pipelined=pipelined)
        for pipelined in (False, True)
    }
    for kind in _kinds(job):
        laps = Laps()
        results[kind] = ours(engines, job, kind, CHECKING, laps)
        laps.end()
    assert sum(row.rows for row in results[FRAME]) == job.rows
    same({name: sorted(tuple(row) for row in rows) for name, rows in results.items()})


def counted(job: Job, found: Sequence[Any]) -> int:
    """The bytes of the job, if the second stage has counted all of it."""
    totals = tuple(sum(row[column] for row in found) for column in range(3))
    expected = (job.rows, job.rows * (job.rows - 1) // 2, job.rows * job.elements)
    if totals != expected:
        raise AssertionError(f"{job.name}: the second stage counted {totals}, not {expected}")
    return job.rows * job.row_bytes


def _measured(engines: Engines, job: Job, options: Options) -> tuple[list[Subject], dict[str, Laps]]:
    def spark(*, pipelined: bool) -> int:
        return counted(job, sparks(engines, job, COUNTING, pipelined=pipelined))

    def flight(kind: str) -> int:
        return counted(job, ours(engines, job, kind, COUNTING, laps[kind]))

    laps = {kind: Laps() for kind in _kinds(job)}
    subjects = [
        engines.subject("Spark", partial(spark, pipelined=False)),
        engines.subject("Spark, pipelined", partial(spark, pipelined=True)),
        *(engines.subject(kind, partial(flight, kind), laps[kind].end, ours=True) for kind in laps),
    ]
    compared(engines, subjects, options)
    return subjects, laps


def _partitioned(batches: of.Batches) -> of.Batches:
    """The second stage over what the writer would send."""
    return of.second(_frames(batches))


def _frames(batches: of.Batches) -> of.Batches:
    keys, coalescer = ByKeys(("key",), PARTITIONS), None
    for batch in batches:
        coalescer = coalescer or Coalescer(batch.schema, PARTITIONS, budget_bytes=WRITE_BUDGET_BYTES)
        for _, frame in coalescer.add(batch, keys.place(batch, 0, 0)):
            yield frame
    if coalescer is not None:
        for _, frame in coalescer.finish():
            yield frame


def _where(engines: Engines, job: Job, kind: str, laps: Laps, options: Options) -> list[str]:
    stages: dict[str, of.Stage] = {"first": of.count, "floor": of.second, "partitioned": _partitioned}

    def run(part: str) -> int:
        with engines.pipelined() if kind == FED else nullcontext():
            steps = job.start(engines, kind)
            if part != "feed":
                steps = steps.mapInArrow(job.first, job.schema)
            found = steps.mapInArrow(stages.get(part, of.count), of.SECOND).toDF().collect()
        assert sum(row.rows for row in found) == job.rows
        return job.rows * job.row_bytes

    subjects = [engines.subject(part, partial(run, part)) for part in PARTS]
    measure(subjects, min(options.rounds, PART_ROUNDS))
    feed, first, floor, partitioned = (subject.median(seconds) for subject in subjects)
    seal, read, before = laps.median("seal"), laps.median("read"), laps.median("write")
    write = before - seal - (partitioned - (floor - first))
    parts = (feed, floor - feed, partitioned - floor, write, seal, read, before + read, floor)
    return [f"{part:.2f}" for part in parts]
