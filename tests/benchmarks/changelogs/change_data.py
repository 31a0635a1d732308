"""Change data capture: the server's CPU for updates that retract the old row, against the same without retractions.

    asserted     each put has ``--put-rows`` new rows, of keys in no order
    retracted    the same puts, each also with the old rows of its keys, ``_diff`` -1

Both begin with one row for each key. CPU is the server's, from the first put until it has nothing more to merge; the
ratio is the median over rounds, each with fresh servers. The rows that it then has must be those that were put last.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_client import ShuffleClient, latest
from tests.benchmarks.changelogs.settling import settled
from tests.benchmarks.measure import conditions, console, table
from tests.support.server_process import ServerProcess

KEYS, PUTS = 300_000, 1000
DELAY_SECONDS = 1.0
SCHEMA = pa.schema(
    [("key", pa.int64()), ("time", pa.int64()), ("price", pa.float64()), ("word", pa.string())]
)
WORDS = pa.array([f"word{number:x}" for number in range(4096)])
COLUMNS = ["puts", "server CPU s", "x asserted"]


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="change_data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the keys and puts")
    parser.add_argument("--put-rows", type=int, default=2000)
    options = parser.parse_args(arguments)
    keys, puts = int(KEYS * options.scale), int(PUTS * options.scale)
    console.print(
        f"[bold]Change data[/bold] · {conditions(options.rounds)}; {keys:,} keys, {puts:,} puts of "
        f"{options.put_rows:,} keys"
    )
    found: dict[str, list[float]] = {"asserted": [], "retracted": []}
    for number in range(options.rounds):
        for name in list(found)[:: 1 if number % 2 else -1]:
            found[name].append(_run(keys, puts, options.put_rows, retracting=name == "retracted"))
    table(
        "The latest row of each key",
        COLUMNS,
        [_row(name, each, found["asserted"]) for name, each in found.items()],
    )


def rows_of(keys: np.ndarray, times: np.ndarray) -> pa.Table:
    """A row of each key and time."""
    return pa.table(
        [keys, times, keys * 0.5 + times, WORDS.take(pa.array((keys + times) % 4096))], schema=SCHEMA
    )


def _run(keys: int, puts: int, put_rows: int, *, retracting: bool) -> float:
    """The server's CPU seconds."""
    chance, times = np.random.default_rng(17), np.zeros(keys, np.int64)
    with (
        tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-") as directory,
        ServerProcess.start(data_dir=Path(directory, "data")) as server,
        ShuffleClient(server.location) as client,
    ):
        changelog = client.changelog(
            "captured", SCHEMA, key="key", order_by="time", keep=latest(), delay_seconds=DELAY_SECONDS
        )
        changelog.put(rows_of(np.arange(keys), times))
        settled(changelog)
        before = server.cpu_seconds()
        for number in range(1, puts + 1):
            some = chance.choice(keys, put_rows, replace=False)
            new = rows_of(some, np.full(put_rows, number))
            if retracting:
                both = pa.concat_tables([rows_of(some, times[some]), new])
                new = both.append_column("_diff", pa.array(np.repeat([-1, 1], put_rows)))
            times[some] = number
            changelog.put(new)
        settled(changelog)
        used = server.cpu_seconds() - before
        kept = changelog.snapshot().table.sort_by("key")
        assert kept["time"].to_numpy().tolist() == times.tolist(), "other rows than were put last"
        return used


def _row(name: str, found: list[float], asserted: list[float]) -> list[str]:
    ratios = [mine / theirs for mine, theirs in zip(found, asserted, strict=True)]
    return [name, f"{statistics.median(found):.1f}", f"{statistics.median(ratios):.2f}"]
