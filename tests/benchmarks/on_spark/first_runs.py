"""The first runs of a fresh session against its later ones: how long a user waits at first, and for what.

Each round is a process of its own with a session on ``local[2]`` and an embedded server, none of which has done
anything. The job is rows of Parquet files, Python -> repartition(16) -> Python, from ``scan``; the files are in the
page cache.

    session     Spark's JVM and session
    server      ``ShuffleClient.embedded()``
    run 1, …    the job; the factor is against the median of the runs after the second one
    pause       with ``--pause``, the job after so many seconds; Spark ends workers that were idle for 60

Beside each line stand the CPU seconds of the driver, the JVM, Python's workers and the server. The job's first run has
Spark's start in it, unless that goes on beside the server's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

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
    *(f"{part} CPU s" for part in PARTS),
]


def _cpu_seconds() -> Counter[str]:
    """What each part of the session has used so far."""
    own, used = psutil.Process(), Counter[str]()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            used[_part(process, own.pid)] += sum(process.cpu_times()[:2])
    return used


def _part(process: psutil.Process, own: int) -> str:
    command = " ".join(process.cmdline())
    if process.pid == own:
        return "driver"
    if "pyspark.worker" in command:
        return "workers"
    return "server" if "flight_server" in command else "JVM"


@dataclass
class Lap:
    """One line of a session: its name, what it took, and the CPU seconds of each part."""

    name: str
    seconds: float
    cpu_seconds: Counter[str]


@contextlib.contextmanager
def _lap(laps: list[Lap], name: str) -> Iterator[None]:
    """The block is the next lap, of this name."""
    before, began = _cpu_seconds(), time.perf_counter()
    yield
    seconds, used = time.perf_counter() - began, _cpu_seconds()
    used.subtract(before)
    laps.append(Lap(name, seconds, used))


def session(path: str, rows: int, runs: int, *, pause: float) -> list[Lap]:
    """All laps of a fresh session; it runs in a fresh process."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    laps: list[Lap] = []
    with contextlib.ExitStack() as stack:
        with _lap(laps, "session"):
            spark = stack.enter_context(local_session(f"local[{CORES}]", driver__memory=HEAP))
        with _lap(laps, "server"):
            client = stack.enter_context(ShuffleClient.embedded())
        names = [f"run {number}" for number in range(1, runs + 1)]
        for name in [*names, "pause"] if pause else names:
            time.sleep(pause if name == "pause" else 0)
            with _lap(laps, name):
                first = client.scan(path, spark=spark).mapInArrow(of.named, of.NAMED)
                result = first.repartition(PARTITIONS, "key").mapInArrow(of.second, of.SECOND).toDF()
                found = sum(row.rows for row in result.collect())
            if found != rows:
                raise AssertionError(f"the second stage counted {found:,} rows, not {rows:,}")
            client.release(result)
    return laps


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="first_runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=RUNS, help="of the job in each session, at least 3")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
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
                measured = fresh.submit(session, path, rows, max(3, options.runs), pause=options.pause)
                rounds.append(measured.result())
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
        used = [f"{statistics.median(lap.cpu_seconds[part] for lap in laps):.2f}" for part in PARTS]
        seconds = statistics.median(lap.seconds for lap in laps)
        shown = f"{factor:.1f}" if name.startswith(("run ", "pause")) else ""
        lines.append([f"{rows:,}", name, f"{seconds:.2f}", shown, *used])
    return lines
