"""Real flights through a real server between real Spark tasks, checked against plain Spark.

Exits with 1 if the two answers differ in a single row.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from rich.bar import Bar
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from spark_client import ShuffleClient
from tests.demo.flights import Flights, load
from tests.demo.question import PARTITIONS, by_plain_spark, by_the_service
from tests.support import java
from tests.support.spark_session import local_session

SHOWN = 12
FEW_FLIGHTS = 50
T = TypeVar("T")
Row = tuple[Any, ...]

console = Console()


def main() -> int:
    """Run the job; the exit code."""
    home = java.find_java_home()
    if home is None:
        console.print(java.MISSING)
        return 1
    # Spark reads these when it starts its JVM and its Python workers.
    os.environ.update(JAVA_HOME=str(home), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    console.print(
        "[bold]How late do flights from New York arrive, by carrier, destination and weather?[/bold]"
    )
    with (
        tempfile.TemporaryDirectory(prefix="flights-") as directory,
        local_session("local[2]") as spark,
        ShuffleClient.embedded(memory_limit="1GiB") as client,
    ):
        console.print(f"Spark {spark.version} on two cores, a server of its own at {client.location}")
        data = load(spark, Path(directory))
        _warm_up(spark, data)
        (answer, broadcasts), writing = _timed(lambda: by_the_service(client, data))
        ours, reading = _timed(lambda: _collected(answer))
        theirs, plain = _timed(lambda: _collected(by_plain_spark(data)))
        _show(ours, {row["carrier"]: row["name"] for row in data.airlines.collect()})
        same = _compare(ours, theirs)
        console.print(
            f"With the service: {writing + reading:.2f} s ({writing:.2f} s for three broadcasts and two exchanges, "
            f"{reading:.2f} s for the result). Plain Spark: {plain:.2f} s."
        )
        if plain < writing + reading:
            console.print(
                "At this size plain Spark is faster: its plan needs no Python, and 30 MB of flights are soon "
                "sent. The exchange pays where the work itself is in Python."
            )
        _show_moved(client.statistics(), partitions=2 * PARTITIONS + len(broadcasts))
    return 0 if same else 1


def _warm_up(spark: SparkSession, data: Flights) -> None:
    """Start the JVM's compiler and the Python workers, whose start would count for the first answer."""
    with console.status("Warming up"):
        data.flights.count()
        spark.range(100).mapInArrow(lambda batches: batches, "id long").count()


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def _collected(answer: DataFrame) -> list[Row]:
    return sorted((tuple(row) for row in answer.collect()), key=repr)


def _compare(ours: list[Row], theirs: list[Row]) -> bool:
    if ours == theirs:
        console.print(f"[green]Both answers are the same, row by row: {len(ours):,} rows.[/green]")
        return True
    missing, extra = sorted(set(theirs) - set(ours), key=repr), sorted(set(ours) - set(theirs), key=repr)
    console.print(
        f"[red]The answers differ: {len(missing)} rows are missing, {len(extra)} are unexpected.[/red]"
    )
    for label, rows in (("missing", missing), ("unexpected", extra)):
        for row in rows[:5]:
            console.print(f"  {label}: {row}")
    return False


def _show(rows: list[Row], airlines: dict[str, str]) -> None:
    table = Table(
        title=f"Latest on average, of those with {FEW_FLIGHTS} flights or more",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for name in ("carrier", "to", "weather"):
        table.add_column(name, no_wrap=True, max_width=16)
    for name in ("flights", "late", "minutes", "hours lost"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    often = [row for row in rows if row[4] >= FEW_FLIGHTS]
    for carrier, dest, airport, weather, flights, late, minutes, lost in sorted(
        often, key=lambda row: -row[6] / row[4]
    )[:SHOWN]:
        table.add_row(
            (airlines.get(carrier) or carrier).split()[0],
            airport or dest,
            weather,
            f"{flights:,}",
            f"{late / flights:.0%}",
            f"{minutes / flights:.1f}",
            f"{lost / 60:,.0f}",
        )
    table.caption = "late: 15 minutes or more; hours lost: of passengers in known planes"
    console.print(table)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row[3]][0] += row[4]
        sums[row[3]][1] += row[6]
    means = {weather: minutes / flights for weather, (flights, minutes) in sums.items()}
    chart = Table(title="Mean delay on arrival by weather at departure", box=None)
    chart.add_column("weather")
    chart.add_column("flights", justify="right")
    chart.add_column("minutes", justify="right")
    chart.add_column("", min_width=40)
    most = max(means.values())
    for weather, mean in sorted(means.items(), key=lambda item: -item[1]):
        chart.add_row(weather, f"{sums[weather][0]:,}", f"{mean:.1f}", Bar(most, 0, max(0.0, mean), width=40))
    console.print(chart)


def _show_moved(statistics: dict[str, Any], partitions: int) -> None:
    console.print(
        f"Moved: {statistics['rows_in']:,} rows, {statistics['bytes_in'] / 1e6:.1f} MB in "
        f"{statistics['frames_in']:,} frames, {partitions} partitions, {statistics['gets']:,} readers, "
        f"{statistics['encodes']:,} encodes."
    )


if __name__ == "__main__":
    sys.exit(main())
