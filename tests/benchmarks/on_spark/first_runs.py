"""The first runs of a fresh session against its later ones: how long a user waits at first, and for what.

Each round is a process of its own with a session on ``local[2]`` and an embedded server, none of which has done
anything. The job is rows of Parquet files, Python -> repartition(16) -> Python, from ``scan``; the files are in the
page cache.

    session     Spark's JVM and session
    Spark       Spark's own first job with Python on each core: ``mapInArrow`` of a function that gives its rows back.
                With it Spark loads its classes and starts its Python workers, which import pyarrow: Spark's own start
    server      ``ShuffleClient.embedded()``
    run 1, …    the job; the factor is against the median of the runs after the second one
    pause       with ``--pause``, the job after so many seconds; Spark ends workers that were idle for 60

Beside each line stand the seconds in ``scan``, in ``toDF``, which runs the writing job, and in ``collect``, which runs
the reading one; the CPU seconds of the driver, the JVM, Python's workers and the server; and the thousands of pages
that workers and the server have touched for the first time. ``--no-spark`` leaves Spark's own first job out, so that
the job's first run has Spark's start in it, unless that goes on beside the server's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from spark_client import ShuffleClient
from tests.benchmarks.measure import conditions, console, table
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.engines import HEAP
from tests.benchmarks.on_spark.pipelines import PARTITIONS
from tests.support.spark_session import local_session

ROWS = (1_000, 20_000_000)
RUNS = 5
CORES = 2
PARTS = ("driver", "JVM", "workers", "server")
COLUMNS = [
    "rows",
    "",
    "s",
    "x later",
    "scan",
    "toDF",
    "collect",
    *(f"{part} CPU s" for part in PARTS),
    "faults, k",
]


@dataclass
class Used:
    """The processes of a session and what each has used so far: CPU seconds by part, and first touches of pages."""

    cpu_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    faults: int = 0

    @classmethod
    def now(cls) -> Used:
        used = cls()
        own = psutil.Process()
        for process in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                part = _part(process, own.pid)
                used.cpu_seconds[part] += sum(process.cpu_times()[:2])
                if part in ("workers", "server"):
                    # Field 10 of proc(5).
                    stat = Path(f"/proc/{process.pid}/stat").read_text()
                    used.faults += int(stat.rpartition(")")[2].split()[7])
        return used

    def since(self, before: Used) -> Used:
        spent = {part: self.cpu_seconds[part] - before.cpu_seconds[part] for part in PARTS}
        return Used(spent, self.faults - before.faults)


def _part(process: psutil.Process, own: int) -> str:
    command = " ".join(process.cmdline())
    if process.pid == own:
        return "driver"
    if "pyspark.worker" in command:
        return "workers"
    return "server" if "flight_server" in command else "JVM"


@dataclass
class Lap:
    """One line of a session: its name, what it took, the seconds of its parts, and what the processes used."""

    name: str
    seconds: float
    parts: dict[str, float]
    used: Used


class Laps:
    """The laps of one session, in order."""

    def __init__(self) -> None:
        self.done: list[Lap] = []
        self.parts: dict[str, float] = {}

    @contextlib.contextmanager
    def lap(self, name: str) -> Any:
        """The block is the lap of this name; what it adds to ``parts`` are its parts."""
        self.parts = {}
        before, began = Used.now(), time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.done.append(Lap(name, seconds, self.parts, Used.now().since(before)))

    @contextlib.contextmanager
    def part(self, name: str) -> Any:
        """The block is this part of the lap."""
        began = time.perf_counter()
        yield
        self.parts[name] = time.perf_counter() - began


def _given_back(batches: of.Batches) -> of.Batches:
    yield from batches


def session(path: str, rows: int, runs: int, *, spark_first: bool, pause: float) -> list[Lap]:
    """All laps of a fresh session; it runs in a fresh process."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    laps = Laps()
    with contextlib.ExitStack() as stack:
        with laps.lap("session"):
            spark = stack.enter_context(local_session(f"local[{CORES}]", driver__memory=HEAP))
        if spark_first:
            with laps.lap("Spark"):
                spark.range(0, CORES, 1, CORES).mapInArrow(_given_back, "id long").collect()
        with laps.lap("server"):
            client = stack.enter_context(ShuffleClient.embedded())
        names = [f"run {number}" for number in range(1, runs + 1)]
        for name in [*names, "pause"] if pause else names:
            time.sleep(pause if name == "pause" else 0)
            with laps.lap(name):
                with laps.part("scan"):
                    scan = client.scan(path, spark=spark)
                with laps.part("toDF"):
                    first = scan.mapInArrow(of.named, of.NAMED)
                    result = first.repartition(PARTITIONS, "key").mapInArrow(of.second, of.SECOND).toDF()
                with laps.part("collect"):
                    found = sum(row.rows for row in result.collect())
            if found != rows:
                raise AssertionError(f"the second stage counted {found:,} rows, not {rows:,}")
            client.release(result)
    return laps.done


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="first_runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=RUNS, help="of the job in each session, at least 3")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--no-spark", action="store_true", help="without Spark's own first job")
    parser.add_argument("--pause", type=float, default=0, help="seconds before one more run")
    options = parser.parse_args(arguments)
    console.print(
        f"[bold]First runs[/bold] · {conditions(options.rounds)}; local[{CORES}], {PARTITIONS} partitions"
    )
    lines: list[list[str]] = []
    for rows in options.rows:
        path = str(data.named_parquet(rows))
        rounds = []
        for _ in range(options.rounds):
            with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
                measured = partial(session, spark_first=not options.no_spark, pause=options.pause)
                rounds.append(fresh.submit(measured, path, rows, max(3, options.runs)).result())
        lines += _lines(rows, rounds)
    table("Fresh sessions: the job's first runs and its later ones", COLUMNS, lines)


def _lines(rows: int, rounds: list[list[Lap]]) -> list[list[str]]:
    """The medians of the rounds."""
    runs = [[lap for lap in laps if lap.name.startswith("run ")] for laps in rounds]
    later = [statistics.median(lap.seconds for lap in laps[2:]) for laps in runs]
    lines = []
    for laps in zip(*rounds, strict=True):
        name = laps[0].name
        factor = statistics.median(lap.seconds / each for lap, each in zip(laps, later, strict=True))
        parts = [_median([lap.parts.get(part) for lap in laps]) for part in ("scan", "toDF", "collect")]
        used = [_median([lap.used.cpu_seconds[part] for lap in laps]) for part in PARTS]
        faults = statistics.median(lap.used.faults for lap in laps) / 1000
        seconds = statistics.median(lap.seconds for lap in laps)
        shown = f"{factor:.1f}" if name.startswith(("run ", "pause")) else ""
        lines.append([f"{rows:,}", name, f"{seconds:.2f}", shown, *parts, *used, f"{faults:,.0f}"])
    return lines


def _median(values: list[float | None]) -> str:
    given = [value for value in values if value is not None]
    return f"{statistics.median(given):.2f}" if given else ""
