"""The same question at a size where the way that data moves counts: Python on either shuffle, and no Python at all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from pyspark.sql import DataFrame
from rich.box import SIMPLE
from rich.table import Table

Way = Callable[[], DataFrame]


def median_seconds(ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """Each way's median of so many rounds, in which the ways take turns.

    Raises:
        AssertionError: two ways have different sums.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    flights: set[int] = set()
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            flights.add(sum(row.flights for row in way().collect()))
            seconds[name].append(time.perf_counter() - started)
    assert len(flights) == 1, f"the answers count {flights} flights"
    return {name: statistics.median(each) for name, each in seconds.items()}


def shown(seconds: dict[str, float], title: str) -> Table:
    """The times, and how much faster the first is than each."""
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), min_width=64)
    table.add_column("the work", no_wrap=True)
    table.add_column("seconds", justify="right")
    table.add_column("x", justify="right")
    first = next(iter(seconds.values()))
    for name, each in seconds.items():
        table.add_row(name, f"{each:.2f}", f"{each / first:.1f}")
    return table
