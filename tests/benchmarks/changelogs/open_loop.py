"""The open loop: updates that come at their times whatever happens, and how late a follower has each.

A producer with a gathering writer, the server and a follower are three processes. Each update has the time when it
was due; its latency is that of its version's receipt by the follower, less this. The schedule does not wait: when
anything stops for 100 ms, the updates that were due meanwhile have waited as long. (The harness of McSherry's article
on self-compacting dataflows.)

There is one key, or 100,000, all of which are there before the clock starts. Rule: ``latest`` by the time, with a delay
of 1 s. Not counted are the first ``--warm-up`` seconds. ``late`` is the most by which the producer was behind.
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

import numpy as np
import pyarrow as pa

from spark_client import ShuffleClient, latest
from spark_client.changelogs.gathered_puts import LINGER_SECONDS
from tests.benchmarks.changelogs import ends
from tests.benchmarks.measure import conditions, console, table
from tests.support.rooms import ROOT
from tests.support.server_process import ServerProcess

KEYS = (1, 100_000)
RATE = 10_000
COLUMNS = ["keys", "median ms", "p99", "p99.9", "max", "late"]
ALIGN_SECONDS = 0.5


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
    table("Latency", COLUMNS, found)


def _run(keys: int, rate: int, options: argparse.Namespace) -> list[str]:
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
            sent, seen = producer.result(), follower.result()
    latency, late = _latencies(sent, seen, begin_ns, rate, total)
    counted = np.percentile(latency[options.warm_up * rate :], [50, 99, 99.9, 100])
    return [f"{keys:,}", *(f"{each:.1f}" for each in counted), f"{late[options.warm_up * rate :].max():.1f}"]


def _latencies(sent: Any, seen: Any, begin_ns: int, rate: int, seconds: int) -> tuple[Any, Any]:
    """Those of all updates in ms, from what the ends have written; and by how much the producer was late."""
    count = rate * seconds
    due_ns = begin_ns + np.arange(count) * int(1e9 / rate)
    each = np.diff(np.append(sent["firsts"], count))
    # A change may be several versions', and has the last one's number.
    received = np.searchsorted(seen["versions"], sent["versions"])
    latency = (np.repeat(seen["received_ns"][received], each) - due_ns) / 1e6
    assert latency.min() >= 0, "an update was seen before it was due"
    return latency, (np.repeat(sent["added_ns"], each) - due_ns) / 1e6


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
