"""Updates of which the latest row of each key is kept: taken in by a changelog, and computed at once by DuckDB.

    changelog    puts of ``--put-rows`` rows by one client, each on disk when it is answered. ``compacted`` is the time
                 from the first put until the server has nothing more to merge; the rows are what its files then have
    DuckDB       ``arg_max`` of each column by time

DuckDB has the whole table in memory, and keeps its result there. It uses all cores. In each round the results are
compared.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from spark_client import ShuffleClient, latest
from tests.benchmarks.changelogs.settling import settled
from tests.benchmarks.measure import conditions, console, table
from tests.support.server_process import ServerProcess

ROWS, KEYS = 10_000_000, 1_000_000
DELAY_SECONDS = 0.001
SCHEMA = pa.schema(
    [("key", pa.int64()), ("time", pa.timestamp("us")), ("price", pa.float64()), ("word", pa.string())]
)


@dataclass
class Found:
    """Of one subject, by round."""

    seconds: list[float] = field(default_factory=list)
    compacted: list[float] = field(default_factory=list)
    rows: int = 0


def updates(rows: int, keys: int) -> pa.Table:
    """Keys in no order, each time once, a price and a word of up to eight letters."""
    chance = np.random.default_rng(11)
    numbers = np.arange(rows)
    words = pa.array([f"word{number:x}" for number in range(4096)])
    columns = [
        chance.integers(0, keys, rows),
        pa.array(1_700_000_000_000_000 + numbers * 100, pa.timestamp("us")),
        chance.random(rows),
        words.take(pa.array(numbers % 4096)),
    ]
    return pa.table(columns, schema=SCHEMA)


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="ingest")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows and keys")
    parser.add_argument("--put-rows", type=int, default=100_000)
    options = parser.parse_args(arguments)
    rows, keys = int(ROWS * options.scale), int(KEYS * options.scale)
    console.print(f"[bold]Ingest[/bold] · {conditions(options.rounds)}; {rows:,} updates, {keys:,} keys")
    given = updates(rows, keys)
    subjects: dict[str, Callable[[Found], pa.Table]] = {
        "changelog": lambda found: _changelog(given, options.put_rows, found),
        "DuckDB": partial(_timed, given),
    }
    found = {name: Found() for name in subjects}
    expected = _duckdb(given).sort_by("key").cast(SCHEMA)
    names = list(subjects)
    for number in range(options.rounds):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            result = subjects[name](found[name]).sort_by("key")
            assert result.cast(SCHEMA).equals(expected), f"{name} has other rows"
    table(
        "The latest row of each key",
        ["subject", "s", "M rows/s", "x changelog", "compacted s", "rows a key"],
        [_row(name, each, found["changelog"], rows, expected.num_rows) for name, each in found.items()],
    )


def _row(name: str, found: Found, ours: Found, rows: int, keys: int) -> list[str]:
    ratios = [theirs / mine for theirs, mine in zip(ours.seconds, found.seconds, strict=True)]
    return [
        name,
        f"{statistics.median(found.seconds):.2f}",
        f"{rows / statistics.median(found.seconds) / 1e6:.2f}",
        f"{statistics.median(ratios):.2f}",
        f"{statistics.median(found.compacted):.2f}" if found.compacted else "",
        f"{found.rows / keys:.2f}",
    ]


def _changelog(given: pa.Table, put_rows: int, found: Found) -> pa.Table:
    with (
        tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-") as directory,
        ServerProcess.start(data_dir=Path(directory, "data")) as server,
        ShuffleClient(server.location) as client,
    ):
        changelog = client.changelog(
            "updates", SCHEMA, key="key", order_by="time", keep=latest(), delay_seconds=DELAY_SECONDS
        )
        started = time.perf_counter()
        for first in range(0, given.num_rows, put_rows):
            changelog.put(given.slice(first, put_rows))
        found.seconds.append(time.perf_counter() - started)
        ended, found.rows = settled(changelog)
        found.compacted.append(ended - started)
        return changelog.snapshot().table


def _timed(given: pa.Table, found: Found) -> pa.Table:
    started = time.perf_counter()
    result = _duckdb(given)
    found.seconds.append(time.perf_counter() - started)
    found.rows = result.num_rows
    return result


def _duckdb(given: pa.Table) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("given", given)
        query = "max(time) as time, arg_max(price, time) as price, arg_max(word, time) as word"
        return connection.sql(f"select key, {query} from given group by key").to_arrow_table()
