"""How long the server's event loop stands still while rows are put and compacted.

The server runs in a process of its own (``watched_server``), whose loop wakes up every millisecond and notes by how
much later it was than that. A stop is what it was late by; on a machine whose cores are all busy that is also the
time that another process or thread had.

    idle         nothing is done
    puts         the rows are put by another process; a hold keeps all of them
    compaction   the hold was released: the server merges all rows, and keeps the latest of each key
    snapshot     a client reads all that is kept
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from spark_client import Changelog, ShuffleClient, latest
from tests.benchmarks.changelogs import watched_server
from tests.benchmarks.changelogs.ingest import DELAY_SECONDS, KEYS, ROWS, SCHEMA, updates
from tests.benchmarks.changelogs.settling import settled
from tests.benchmarks.measure import conditions, console, table
from tests.support.rooms import ROOT

IDLE_SECONDS = 5.0
COLUMNS = ["while", "s", "wake-ups", "late by > 1 ms", "> 5 ms", "p99.9 ms", "longest ms", "rows then"]


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="pauses")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows and keys")
    parser.add_argument("--put-rows", type=int, default=100_000)
    options = parser.parse_args(arguments)
    rows, keys = int(ROWS * options.scale), int(KEYS * options.scale)
    console.print(f"[bold]Stops of the event loop[/bold] · {conditions(1)}; {rows:,} rows, {keys:,} keys")
    given = updates(rows, keys)
    found: list[list[str]] = []
    with (
        tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-") as directory,
        Watched(Path(directory, "data")) as server,
        ShuffleClient(server.location) as client,
    ):
        changelog = client.changelog(
            "updates", SCHEMA, key="key", order_by="time", keep=latest(), delay_seconds=DELAY_SECONDS
        )
        changelog.put(given.slice(0, 1))
        # The first of anything imports and opens; that is no part of any row.
        server.stops()
        time.sleep(IDLE_SECONDS)
        found.append(_row("idle", server, changelog))
        with changelog.hold():
            for first in range(1, rows, options.put_rows):
                changelog.put(given.slice(first, options.put_rows))
            found.append(_row(f"puts of {options.put_rows:,}", server, changelog))
            settled(changelog)
            found.append(_row("merges that must keep all", server, changelog))
        settled(changelog)
        found.append(_row("compaction", server, changelog))
        kept = changelog.snapshot().table.num_rows
        found.append(_row(f"snapshot of {kept:,}", server, changelog))
    table("Stops of the event loop", COLUMNS, found)


def _row(name: str, server: Watched, changelog: Changelog) -> list[str]:
    said = server.stops()
    return [
        name,
        f"{said['seconds']:.1f}",
        f"{said['count']:,}",
        f"{said['over_1_ms']:,}",
        f"{said['over_5_ms']:,}",
        f"{said['p999_ms']:.2f}",
        f"{said['max_ms']:.2f}",
        f"{changelog.statistics()['rows']:,}",
    ]


class Watched:
    """A process of ``watched_server``; a context manager that ends it."""

    def __init__(self, data_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", watched_server.__name__, str(data_dir)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def stops(self) -> dict[str, Any]:
        """What its loop has noted since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("stops\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        self.location = str(self._answer()["location"])
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
