"""A table of 320 MB in every task: its first use in each of 1, 2, 4 and 8 workers, and the memory of the host.

    ours    shuffle.broadcast(table), ``handle.table()`` in the task
    Spark   sparkContext.broadcast(table), ``handle.value`` in the task

Each round starts a session with as many cores as workers, and all workers use the table at once. ``driver s`` is what
the driver takes to broadcast it, ``first use s`` what the slowest worker takes to have the table, ``and a pass s`` to
have read all of it, too. ``workers MiB`` is by how much the proportional set size of all workers together has grown
then (``smaps_rollup``: pages that they share count once), less its growth with a table of one row. ``host MiB`` is that
size of the driver, the JVM and the server with them.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.measure import MIB, table
from tests.benchmarks.on_spark.engines import MASTER, Engines, Options

ROWS = 10_000_000
WORKERS = (1, 2, 4, 8)
WAIT_SECONDS = 120.0
USED = "pid long, first double, whole double, total double"


@dataclass(frozen=True)
class Use:
    """A task that waits until ``workers`` of them run, so that each has a worker of its own, and uses the table."""

    meeting: str
    workers: int
    take: Callable[[], Any] | None = None

    def __call__(self, batches: Any) -> Any:
        for _ in batches:
            Path(self.meeting, str(os.getpid())).touch()
            deadline = time.monotonic() + WAIT_SECONDS
            while len(os.listdir(self.meeting)) < self.workers:  # noqa: PTH208 - the shortest loop
                if time.monotonic() > deadline:
                    raise TimeoutError(f"fewer than {self.workers} workers after {WAIT_SECONDS} s")
                time.sleep(0.001)
            started = time.perf_counter()
            taken = self.take() if self.take else None
            first = time.perf_counter() - started
            total = sum(pc.sum(column).as_py() for column in taken.columns) if taken is not None else 0.0
            row = [os.getpid(), first, time.perf_counter() - started, float(total)]
            yield pa.record_batch(
                [pa.array([each]) for each in row], names=["pid", "first", "whole", "total"]
            )


@dataclass
class Costs:
    """Of one way and number of workers, by round. ``least_bytes`` is by how much any use makes the workers grow."""

    least_bytes: float = 0.0
    driver: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    workers_bytes: list[float] = field(default_factory=list)
    host_bytes: list[float] = field(default_factory=list)


def pss_bytes(pids: list[int]) -> int:
    """The proportional set sizes of these processes together."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("broadcasts", arguments)
    options.announce("Broadcasts", "as many cores for Spark as workers")
    rows = max(1000, int(ROWS * options.scale))
    numbers = np.arange(rows)
    content = pa.table({"a": numbers, "b": numbers * 2, "c": numbers * 0.5, "d": numbers % 97})
    found: list[list[str]] = []
    with Engines() as engines:
        for workers in WORKERS:
            if not options.wants(f"{workers} workers"):
                continue
            costs = {"Spark": Costs(), "flight": Costs()}
            for name, each in costs.items():
                _round(engines, name, content.take([0]), workers, nothing := Costs())
                each.least_bytes = nothing.workers_bytes[0]
            for number in range(options.rounds):
                for name in sorted(costs, reverse=number % 2 == 0):
                    _round(engines, name, content, workers, costs[name])
            found += _rows(workers, costs)
    columns = [
        "workers",
        "subject",
        "driver s",
        "first use s",
        "x Spark",
        "and a pass s",
        "workers MiB",
        "host MiB",
    ]
    table(f"A broadcast of {content.nbytes / 1e6:.0f} MB", columns, found)


def _round(engines: Engines, name: str, content: pa.Table, workers: int, costs: Costs) -> None:
    engines.renew(MASTER.replace("2", str(workers), 1))
    pids = sorted(row.pid for row in _run(engines, workers, None))
    before_bytes = pss_bytes(pids)
    started = time.perf_counter()
    take: Callable[[], Any]
    if name == "Spark":
        theirs = engines.spark.sparkContext.broadcast(content)
        costs.driver.append(time.perf_counter() - started)
        take = lambda: theirs.value  # noqa: E731 - a closure, as a user's function is
    else:
        ours = engines.shuffle.broadcast(content)
        costs.driver.append(time.perf_counter() - started)
        take = lambda: ours.table()  # noqa: E731, PLW0108 - as above
    used = _run(engines, workers, take)
    assert sorted(row.pid for row in used) == pids, "a worker was replaced"
    expected = sum(pc.sum(column).as_py() for column in content.columns)
    assert all(row.total == float(expected) for row in used), used
    costs.first.append(max(row.first for row in used))
    costs.whole.append(max(row.whole for row in used))
    costs.workers_bytes.append(pss_bytes(pids) - before_bytes)
    own = psutil.Process()
    costs.host_bytes.append(pss_bytes([own.pid, *(each.pid for each in own.children(recursive=True))]))


def _run(engines: Engines, workers: int, take: Callable[[], Any] | None) -> Any:
    with tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-") as meeting:
        numbers = engines.spark.range(0, workers, 1, workers)
        return numbers.mapInArrow(Use(meeting, workers, take), USED).collect()


def _rows(workers: int, costs: dict[str, Costs]) -> list[list[str]]:
    return [
        [
            str(workers),
            name,
            f"{statistics.median(each.driver):.2f}",
            f"{statistics.median(each.first):.3f}",
            f"{statistics.median(map(lambda a, b: a / b, costs['Spark'].first, each.first)):.1f}",
            f"{statistics.median(each.whole):.3f}",
            f"{(statistics.median(each.workers_bytes) - each.least_bytes) / MIB:.0f}",
            f"{statistics.median(each.host_bytes) / MIB:.0f}",
        ]
        for name, each in costs.items()
    ]
