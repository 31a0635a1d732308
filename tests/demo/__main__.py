"""Real flights through a real server between real Spark tasks, checked against Spark alone and compared with it.

Exits with 1 if two answers differ in a single row.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.bar import Bar
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from spark_client import ShuffleClient
from tests.demo.comparison import median_seconds, shown
from tests.demo.flights import Flights, load
from tests.demo.question import by_plain_spark, by_sparks_shuffle, by_the_service
from tests.support import java
from tests.support.spark_session import local_session

SHOWN = 12
FEW_FLIGHTS = 50
Row = tuple[Any, ...]

console = Console()


def main() -> int:
    """Run the job; the exit code."""
    options = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    options.add_argument("--years", type=int, default=10, help="how many times the data the comparison takes")
    options.add_argument("--rounds", type=int, default=3, help="and how often")
    given = options.parse_args()
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
        data = answer(spark, client, Path(directory))
        if data is None:
            return 1
        years = data.times(given.years, Path(directory) / "years")
        _show_comparison(spark, client, years, given.years, given.rounds)
        return 0


def answer(spark: SparkSession, client: ShuffleClient, home: Path) -> Flights | None:
    """Show the answer, compare it with Spark's, and show what was moved; the data, or None if two answers differ."""
    with console.status("Reading the flights"):
        data = load(spark, home)
    console.print("The work in Python stages, with two exchanges and three broadcasts of the server:")
    ours = _collected(by_the_service(spark, client, data))
    _show(ours, {row["carrier"]: row["name"] for row in data.airlines.collect()})
    with console.status("Answering with Spark alone"):
        same = all(
            _compare(ours, _collected(way(spark, data)), label)
            for label, way in (
                ("the same stages on Spark's shuffle", by_sparks_shuffle),
                ("Spark's own joins and sums", by_plain_spark),
            )
        )
    _show_moved(client.statistics())
    return data if same else None


def _show_comparison(
    spark: SparkSession, client: ShuffleClient, data: Flights, years: int, rounds: int
) -> None:
    """The three ways over many times the data; each is warm."""
    with console.status(f"Comparing: {rounds} rounds"), client.scope():
        seconds = median_seconds(
            {
                "Python stages on this service": lambda: by_the_service(spark, client, data),
                "the same stages on Spark's shuffle": lambda: by_sparks_shuffle(spark, data),
                "Spark's joins and sums, no Python": lambda: by_plain_spark(spark, data),
            },
            rounds,
        )
    console.print(
        shown(seconds, f"{years} such years, {years * 336_776:,} flights, median of {rounds} rounds")
    )
    ours, shuffle, plain = seconds.values()
    console.print(
        f"The service moves the Python stages' data {shuffle / ours:.1f} times as fast as Spark's shuffle. "
        + (
            "What SQL can say is faster without Python: the exchange is for work that it cannot."
            if plain < ours
            else "Here it is faster than the plan without Python, too."
        )
    )


def _collected(answer: DataFrame) -> list[Row]:
    return sorted((tuple(row) for row in answer.collect()), key=repr)


def _compare(ours: list[Row], theirs: list[Row], label: str) -> bool:
    if ours == theirs:
        console.print(f"[green]By {label} the answer is the same, row by row: {len(ours):,} rows.[/green]")
        return True
    missing, extra = sorted(set(theirs) - set(ours), key=repr), sorted(set(ours) - set(theirs), key=repr)
    console.print(
        f"[red]By {label} the answer differs: {len(missing)} rows are missing, {len(extra)} are unexpected.[/red]"
    )
    for what, rows in (("missing", missing), ("unexpected", extra)):
        for row in rows[:5]:
            console.print(f"  {what}: {row}")
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


def _show_moved(statistics: dict[str, Any]) -> None:
    console.print(
        f"Moved: {statistics['rows_in']:,} rows, {statistics['bytes_in'] / 1e6:.1f} MB in "
        f"{statistics['frames_in']:,} frames, {statistics['gets']:,} readers, "
        f"{statistics['encodes']:,} encodes."
    )


if __name__ == "__main__":
    sys.exit(main())
