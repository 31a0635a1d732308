"""A good reader beside many that take nothing, against the same reader alone: Spark tasks that compute between
batches, notebooks that were left open, hosts that sleep.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from urllib.request import urlopen

from tests.benchmarks.crowd import read_with_client, read_with_pyarrow
from tests.benchmarks.fan_out import put
from tests.benchmarks.measure import MIB, conditions, console, table
from tests.support.paused import Lane, pause
from tests.support.server_process import ServerProcess

DATASET_BYTES = 100 * MIB
FRAME_BYTES = MIB
MEMORY_LIMIT = "256MiB"
ROUNDS = 5
LANES: tuple[Lane, ...] = ("bulk", "grpc")


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="paused")
    parser.add_argument("--paused", type=int, nargs="+", default=[60, 100, 1000])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    console.print(f"[bold]Paused readers[/bold] · {conditions(options.rounds)}")
    rows = [_row(lane, readers, options.rounds) for lane in LANES for readers in options.paused]
    table(
        f"100 MiB in frames of 1 MiB, --memory-limit {MEMORY_LIMIT}",
        ["lane", "paused", "alone s", "first s", "beside s", "speed beside / alone", "ended"],
        rows,
    )


def ended_by(server: ServerProcess) -> int:
    """How many readers the server has ended as too slow."""
    with urlopen(f"{server.http}/v1/statistics") as answer:
        return int(json.loads(answer.read())["readers_ended_as_too_slow"])


def _row(lane: Lane, readers: int, rounds: int) -> list[str]:
    read = read_with_client if lane == "bulk" else read_with_pyarrow
    with ServerProcess.start(memory_limit=MEMORY_LIMIT) as server:
        put(server.location, "d", FRAME_BYTES, DATASET_BYTES // FRAME_BYTES)

        def seconds() -> float:
            started = time.perf_counter()
            read(server.location, "d", DATASET_BYTES)
            return time.perf_counter() - started

        seconds()
        alone = statistics.median(seconds() for _ in range(rounds))
        with ExitStack() as opened:
            pause(opened, server, lane, "d", readers)
            first = seconds()  # while the others have only just come
            beside = statistics.median(seconds() for _ in range(rounds))
            ended = ended_by(server)
    return [
        lane,
        str(readers),
        f"{alone:.2f}",
        f"{first:.2f}",
        f"{beside:.2f}",
        f"{alone / beside:.2f}",
        str(ended),
    ]
