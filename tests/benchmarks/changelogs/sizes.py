"""How large changelogs become under patterns of writes, and how much is written to disk for them; each into a changelog
of a server of its own, at the same time.

    burst, trickle   200,000 rows for 1,000 keys, then ten rows a second for ten seconds, then silence for five
    hold, release    2,000 rows a second for 5,000 keys; every other 20 seconds a hold keeps all of them
    change data      100,000 keys; four puts a second, each of 2,000 rows that change: the old one -1, the new one +1
    four writers     each puts 500 rows four times a second, over the same 20,000 keys
    one hot key      100,000 keys; twenty puts a second, each of 100 rows of one of them
    auctions         20 auctions get 1,000 bids each in four seconds, then close; then the next ones; few late bids
    pairs            2,000 sends, and half a second later their recvs; the pairs of one key are all of one second

Rule: ``latest``, ``until_closed`` of auctions, ``pair`` of pairs; delay 1 s. Twice a second the rows that the server
stores are compared with the bound: 2 x the rows that were needed, and those that were put, in the last ``FEW`` delays.
``worst`` is the greatest quotient, but while a hold keeps the rows, and ``FEW`` delays after it; ``at the end`` the one
when nothing was put for ``FEW`` delays. At most 1 is as promised. ``written`` is what the server's process wrote to the
disk (``write_bytes`` of /proc/<pid>/io: records, files, and what compaction makes of them) for each byte of a put.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.protocol import KeepRule
from spark_client import Changelog, ShuffleClient, latest, pair, until_closed
from tests.benchmarks.measure import conditions, console, table
from tests.support.server_process import ServerProcess

DELAY_SECONDS = 1.0
FEW = 4
SAMPLE_SECONDS = 0.5
SCHEMA = pa.schema(
    [("key", pa.int64()), ("time", pa.int64()), ("value", pa.float64()), ("name", pa.string())]
)
COLUMNS = ["pattern", "worst", "at the end", "written"]


@dataclass
class Sizes:
    """What was seen of one changelog: the quotients by sample, and the largest of those that count."""

    name: str
    put_bytes: int = 0
    written_bytes: int = 0
    quotients: list[float] = field(default_factory=list)
    worst: float = 0.0


class Pattern:
    """Writes to one changelog until ``stop``; counts what it has put."""

    def __init__(self, changelog: Changelog, keys: int, stop: threading.Event) -> None:
        self.changelog = changelog
        self.keys = keys
        self.stop = stop
        self.put_bytes = 0
        self.held_until = 0.0
        self._needed = [(time.monotonic(), keys)]
        self._recent: list[tuple[float, int]] = []
        self._time = 0
        self._lock = threading.Lock()

    def rows(self, keys: Any, time_: int | None = None) -> pa.Table:
        """New rows of these keys, or their rows of that time."""
        if time_ is None:
            with self._lock:
                self._time += 1
                time_ = self._time
        times = np.full(len(keys), time_)
        names = pa.array([f"name {key}" for key in range(256)]).take(pa.array(keys % 256))
        return pa.table([keys, times, keys * 0.5 + times, names], schema=SCHEMA)

    def put(self, rows: pa.Table) -> None:
        self.changelog.put(rows)
        with self._lock:
            self.put_bytes += rows.nbytes
            self._recent.append((time.monotonic(), rows.num_rows))

    def recent(self, seconds: float) -> int:
        """The rows of the last ``seconds``."""
        with self._lock:
            since = time.monotonic() - seconds
            self._recent = [each for each in self._recent if each[0] > since]
            return sum(rows for _, rows in self._recent)

    def needs(self, more: int) -> None:
        """So many more rows are needed from now on."""
        with self._lock:
            self._needed.append((time.monotonic(), self._needed[-1][1] + more))

    def needed(self, seconds: float) -> int:
        """The most rows that were needed in the last ``seconds``."""
        with self._lock:
            since = time.monotonic() - seconds
            while len(self._needed) > 1 and self._needed[1][0] < since:
                del self._needed[0]
            return max(rows for _, rows in self._needed)

    def random_keys(self, chance: np.random.Generator, count: int) -> Any:
        return chance.integers(0, self.keys, count)


def burst_and_trickle(of: Pattern) -> None:
    chance = np.random.default_rng(1)
    while not of.stop.is_set():
        for _ in range(10):
            of.put(of.rows(of.random_keys(chance, 20_000)))
        for _ in range(100):
            of.put(of.rows(of.random_keys(chance, 1)))
            if of.stop.wait(0.1):
                return
        of.stop.wait(5.0)


def hold_and_release(of: Pattern) -> None:
    chance = np.random.default_rng(2)

    def puts() -> None:
        for _ in range(40):
            of.put(of.rows(of.random_keys(chance, 1000)))
            if of.stop.wait(0.5):
                return

    while not of.stop.is_set():
        with of.changelog.hold(lease_seconds=60.0):
            of.held_until = float("inf")
            puts()
        of.held_until = time.monotonic() + FEW * DELAY_SECONDS
        puts()


def change_data(of: Pattern) -> None:
    chance, times = np.random.default_rng(3), np.zeros(of.keys, np.int64)
    every = np.arange(of.keys)
    of.put(of.rows(every, 0))
    while not of.stop.wait(0.25):
        keys = chance.choice(of.keys, 2000, replace=False)
        of.put(changed(of, keys, times))


def changed(of: Pattern, keys: Any, times: Any) -> pa.Table:
    """The old rows of these keys, -1, and new ones, +1; ``times`` of the keys' rows is set."""
    new = of.rows(keys)
    old = [of.rows(keys[times[keys] == at], int(at)) for at in np.unique(times[keys])]
    times[keys] = new["time"][0].as_py()
    together = pa.concat_tables([*old, new])
    return together.append_column("_diff", pa.array(np.repeat([-1, 1], len(keys))))


def four_writers(of: Pattern) -> None:
    def write(seed: int) -> None:
        chance = np.random.default_rng(seed)
        while not of.stop.wait(0.25):
            of.put(of.rows(of.random_keys(chance, 500)))

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(write, seed) for seed in range(4, 8)]:
            done.result()


def one_hot_key(of: Pattern) -> None:
    of.put(of.rows(np.arange(of.keys)))
    while not of.stop.wait(0.05):
        of.put(pa.concat_tables([of.rows(np.zeros(1, np.int64)) for _ in range(100)]))


def auctions(of: Pattern) -> None:
    chance, first = np.random.default_rng(9), 0
    while not of.stop.is_set():
        keys = np.arange(first, first + 20)
        for _ in range(8):
            of.needs(20 * 125)
            of.put(of.rows(np.repeat(keys, 125)))
            if first:
                of.put(of.rows(chance.integers(0, first, 1), 0))  # never needed
            if of.stop.wait(0.5):
                return
        of.put(named(of.rows(keys), "closed"))
        of.needs(-20 * 1000 + 20 * 2)
        first += 20


def pairs(of: Pattern) -> None:
    key = 0
    while not of.stop.is_set():
        rows = of.rows(np.repeat(np.arange(key, key + 20), 100))
        of.needs(rows.num_rows)
        of.put(named(rows, "send"))
        of.stop.wait(0.5)
        of.put(named(rows, "recv"))
        of.needs(-rows.num_rows)
        key += 20


def named(rows: pa.Table, name: str) -> pa.Table:
    """These rows with one name, each with a value of its own."""
    values = pa.array(np.arange(rows.num_rows) * 1.0)
    names = pa.array([name]).take(pa.array(np.zeros(rows.num_rows, np.int64)))
    return rows.set_column(2, SCHEMA.field("value"), values).set_column(3, SCHEMA.field("name"), names)


PATTERNS: dict[str, tuple[int, KeepRule, Callable[[Pattern], None]]] = {
    "burst, trickle": (1000, latest(), burst_and_trickle),
    "hold, release": (5000, latest(), hold_and_release),
    "change data": (100_000, latest(), change_data),
    "four writers": (20_000, latest(), four_writers),
    "one hot key": (100_000, latest(), one_hot_key),
    "auctions": (0, until_closed({"name": "closed"}), auctions),
    "pairs": (0, pair("name"), pairs),
}


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="sizes")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--only", nargs="+", default=(), help="patterns with one of these words in their names"
    )
    options = parser.parse_args(arguments)
    console.print(f"[bold]Sizes[/bold] · {conditions(1)}; {options.minutes:g} minutes")
    chosen = {
        name: of
        for name, of in PATTERNS.items()
        if not options.only or any(word in name for word in options.only)
    }
    found = _run(chosen, options.minutes * 60)
    table(
        "Rows against 2 x the needed ones and those of the last delays",
        COLUMNS,
        [_row(each) for each in found],
    )
    console.print(f"worst: {max(each.worst for each in found):.2f}")


def _run(chosen: dict[str, tuple[int, KeepRule, Callable[[Pattern], None]]], seconds: float) -> list[Sizes]:
    stop = threading.Event()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-"))
        threads = stack.enter_context(ThreadPoolExecutor(len(chosen)))
        found: list[tuple[Sizes, Pattern, Path]] = []
        for name, (keys, keep, _) in chosen.items():
            dataset = name.replace(", ", "-").replace(" ", "-")
            server = stack.enter_context(ServerProcess.start(data_dir=Path(directory, dataset)))
            client = stack.enter_context(ShuffleClient(server.location))
            changelog = client.changelog(
                dataset, SCHEMA, key="key", order_by="time", keep=keep, delay_seconds=DELAY_SECONDS
            )
            found.append((Sizes(name), Pattern(changelog, keys, stop), Path(f"/proc/{server.pid}/io")))
        running = [
            threads.submit(write, of)
            for (_, _, write), (_, of, _) in zip(chosen.values(), found, strict=True)
        ]
        try:
            _watch(found, seconds, lambda: any(each.done() for each in running))
        finally:
            stop.set()
        for each in running:
            each.result()
        # The last sample is of what is left when nothing is put.
        time.sleep((FEW + 1) * DELAY_SECONDS)
        _watch(found, SAMPLE_SECONDS / 2, lambda: False)
    return [sizes for sizes, _, _ in found]


def _watch(found: list[tuple[Sizes, Pattern, Path]], seconds: float, ended: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < seconds and not ended():
        for sizes, of, io in found:
            # Before the answer: what is put meanwhile is then in its rows, and not in the bound.
            held = time.monotonic() < of.held_until
            rows = int(of.changelog.statistics()["rows"])
            bound = 2 * of.needed(FEW * DELAY_SECONDS) + of.recent(FEW * DELAY_SECONDS)
            sizes.quotients.append(rows / max(1, bound))
            if not held:
                sizes.worst = max(sizes.worst, sizes.quotients[-1])
            sizes.put_bytes = of.put_bytes
            counters = dict(line.split(": ") for line in io.read_text().splitlines())
            sizes.written_bytes = int(counters["write_bytes"])
        time.sleep(SAMPLE_SECONDS)


def _row(of: Sizes) -> list[str]:
    written = of.written_bytes / max(1, of.put_bytes)
    return [of.name, f"{of.worst:.2f}", f"{of.quotients[-1]:.2f}", f"{written:.1f}"]
