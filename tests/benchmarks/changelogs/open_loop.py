"""The open loop: updates that come at their times whatever happens, and how late a follower has each.

A producer with a gathering writer, the server and a follower are three processes. Each update has the time when it
was due; its latency is that of its version's receipt by the follower, less this. The schedule does not wait: when
anything stops for 100 ms, the updates that were due meanwhile have waited as long. (The harness of McSherry's article
on self-compacting dataflows.)

There is one key, or 100,000, all of which are there before the clock starts. Rule: ``latest`` by the time, with a delay
of 1 s. Not counted are the first ``--warm-up`` seconds. Columns of the table: latency in ms; the 99th percentile over
the first and the last tenth of the seconds; the server's resident size, its files and its rows at the begin and at the
end. Everything for each second is in ``build/benchmarks/open_loop.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from spark_client import ShuffleClient, latest
from spark_client.changelogs.gathered_puts import LINGER_SECONDS
from tests.benchmarks.changelogs import ends
from tests.benchmarks.measure import MIB, conditions, console, table
from tests.support.rooms import ROOT
from tests.support.server_process import ServerProcess

KEYS = (1, 100_000)
RATE = 10_000
RESULTS = ROOT / "build" / "benchmarks"
COLUMNS = [
    "keys",
    "median",
    "p99",
    "p99.9",
    "max",
    "p99 first",
    "last",
    "MiB RAM",
    "MiB disk",
    "rows",
]
ALIGN_SECONDS = 0.5


@dataclass
class Seconds:
    """What was seen in each second, warm-up included. Latencies in ms."""

    name: str
    rate: int
    warm_up: int
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    max: list[float] = field(default_factory=list)
    ram_bytes: list[int] = field(default_factory=list)
    disk_bytes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    overall: dict[str, float] = field(default_factory=dict)


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="open_loop")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=5, help="seconds before these")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the keys and of the rate")
    parser.add_argument("--tick-ms", type=float, default=1.0, help="how often the producer looks what is due")
    parser.add_argument("--linger-ms", type=float, help="of the gathering writer, if not its own")
    options = parser.parse_args(arguments)
    console.print(
        f"[bold]Open loop[/bold] · {conditions(1)}; {options.seconds} s each after {options.warm_up} s of warm-up"
    )
    rate = max(1, int(RATE * options.scale))
    found = [_run(max(1, int(keys * options.scale)), rate, options) for keys in KEYS]
    table("Latency in ms, and what it costs", COLUMNS, [_row(each) for each in found])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "open_loop.json").write_text(json.dumps([asdict(each) for each in found]))


def _run(keys: int, rate: int, options: argparse.Namespace) -> Seconds:
    seconds = Seconds(f"{keys:,}", rate, options.warm_up)
    total = options.warm_up + options.seconds
    with (
        tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-") as directory,
        ServerProcess.start(data_dir=Path(directory, "data")) as server,
        ShuffleClient(server.location) as client,
    ):
        changelog = client.changelog(
            ends.NAME, ends.SCHEMA, key="key", order_by="due_ns", keep=latest(), delay_seconds=1.0
        )
        there = pa.record_batch(
            [np.arange(keys), np.zeros(keys, np.int64), np.zeros(keys)], schema=ends.SCHEMA
        )
        after = changelog.put(there)
        linger_seconds = LINGER_SECONDS if options.linger_ms is None else options.linger_ms / 1e3
        with (
            _End("follower", server, directory, after=after) as follower,
            _End(
                "producer",
                server,
                directory,
                keys=keys,
                rate=rate,
                seconds=total,
                tick_seconds=options.tick_ms / 1e3,
                linger_seconds=linger_seconds,
            ) as producer,
        ):
            begin_ns = time.monotonic_ns() + int(ALIGN_SECONDS * 1e9)
            producer.tell(str(begin_ns))
            for second in range(total):
                time.sleep(max(0.0, begin_ns / 1e9 + second + 1 - time.monotonic()))
                seconds.ram_bytes.append(server.rss_bytes())
                seconds.disk_bytes.append(_disk_bytes(Path(directory, "data")))
                seconds.rows.append(int(changelog.statistics()["rows"]))
            sent, seen = producer.result(), follower.result()
    add_latencies(seconds, sent, seen, begin_ns, total)
    console.print(f"{keys:,}: {', '.join(f'{key} {value:.1f}' for key, value in seconds.overall.items())}")
    return seconds


def add_latencies(seconds: Seconds, sent: Any, seen: Any, begin_ns: int, total: int) -> None:
    """Add those of all updates, from what the ends have written."""
    count = int(seconds.rate * total)
    due_ns = begin_ns + np.arange(count) * int(1e9 / seconds.rate)
    each = np.diff(np.append(sent["firsts"], count))
    # A change may be several versions', and has the last one's number.
    received = np.searchsorted(seen["versions"], sent["versions"])
    latency = (np.repeat(seen["received_ns"][received], each) - due_ns) / 1e6
    late = (np.repeat(sent["added_ns"], each) - due_ns) / 1e6
    assert latency.min() >= 0, "an update was seen before it was due"
    for first in range(0, count, seconds.rate):
        mine = latency[first : first + seconds.rate]
        seconds.p50.append(float(np.median(mine)))
        seconds.p99.append(float(np.percentile(mine, 99)))
        seconds.max.append(float(mine.max()))
    counted, late = latency[seconds.warm_up * seconds.rate :], late[seconds.warm_up * seconds.rate :]
    for name, percentile in (("median", 50), ("p99", 99), ("p99.9", 99.9), ("max", 100)):
        seconds.overall[name] = float(np.percentile(counted, percentile))
    seconds.overall["producer late, max"] = float(late.max())


def _row(of: Seconds) -> list[str]:
    begin, tenth = of.warm_up, max(1, (len(of.p99) - of.warm_up) // 10)
    return [
        of.name,
        *(f"{of.overall[name]:.1f}" for name in ("median", "p99", "p99.9", "max")),
        f"{np.median(of.p99[begin : begin + tenth]):.1f}",
        f"{np.median(of.p99[-tenth:]):.1f}",
        f"{of.ram_bytes[begin] / MIB:.0f} - {of.ram_bytes[-1] / MIB:.0f}",
        f"{of.disk_bytes[begin] / MIB:.1f} - {of.disk_bytes[-1] / MIB:.1f}",
        f"{of.rows[begin]:,} - {of.rows[-1]:,}",
    ]


def _disk_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:  # merged meanwhile
            continue
    return total


class _End:
    """A process of ``ends``; a context manager that ends it."""

    def __init__(self, kind: str, server: ServerProcess, directory: str, **options: Any) -> None:
        self._into = Path(directory, f"{kind}.npz")
        given = json.dumps({"location": server.location, "into": str(self._into), **options})
        self._process = subprocess.Popen(
            [sys.executable, "-m", ends.__name__, kind, given],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        """Send a line to its input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        """Wait for its end; what it has written."""
        assert self._process.wait() == 0, f"{self._into.stem} ended with {self._process.returncode}"
        with np.load(self._into) as found:
            return {name: found[name] for name in found.files}

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", f"{self._into.stem} did not start"
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
