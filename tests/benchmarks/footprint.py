"""The footprint: what many small things cost the server's process, against what its limits allow.

Each scenario fills a fresh server with one kind of thing, as many as its users may make, and looks at the
resident size of the process. It passes if that never went beyond the formula of deploy/README.md: the memory limit and
``BEYOND_LIMIT_BYTES``. A new kind of thing is one more line in ``SCENARIOS``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import CreateRequest, Kind
from tests.benchmarks import bombs, footprint_calls, footprint_held
from tests.benchmarks.measure import MIB, conditions, console, table
from tests.support import raw_flight, raw_put
from tests.support.server_process import ServerProcess

BEYOND_LIMIT_BYTES = 150 * MIB
CHANGELOG_BYTES = 120 * MIB
"""What slices of commits and merges take, and the libraries that only changelogs need."""
MESSAGES_AT_ONCE = 1000
REFUSAL = "there is no room for"
ONE_ROW = pa.record_batch({"n": pa.array([7], pa.int64())})

COLUMNS = ["scenario", "limit", "RSS at rest", "RSS peak", "RSS after", "allowed", "pool peak", "passed"]


@dataclass(frozen=True)
class Scenario:
    """What fills the server.

    Args:
        work: makes the things, ``count`` of them.
        count: how many in the full size.
        settings: of the server, beside its memory limit.
        beyond_bytes: what deploy/README.md allows above the limit.
        refused: there is no room for all of them, so the server must say so at one of them.
    """

    name: str
    work: Callable[[ServerProcess, int], None]
    count: int
    memory_limit_bytes: int
    settings: dict[str, Any] = field(default_factory=dict)
    beyond_bytes: int = BEYOND_LIMIT_BYTES
    refused: bool = False

    @property
    def allowed_bytes(self) -> int:
        return self.memory_limit_bytes + self.beyond_bytes


@dataclass(frozen=True)
class Footprint:
    """What one run of a scenario found, in bytes; ``error`` is empty if its work was done."""

    rest_bytes: int
    peak_bytes: int
    after_bytes: int
    pool_peak_bytes: int
    error: str = ""


def frames_of_one_row(server: ServerProcess, count: int) -> None:
    """One stream of so many frames, each with one row."""
    _put(server, raw_flight.path("frames"), repeat(b"", count), end=[])


def frames_of_one_row_in_a_shuffle(server: ServerProcess, count: int) -> None:
    """One attempt that writes so many frames of one row to 100 partitions, and the seal."""
    create(server, CreateRequest("frames", Kind.SHUFFLE, partitions=100, producers=1))
    _write_shuffle(server, "frames", (b"%d" % (number % 100) for number in range(count)), count)


def datasets(server: ServerProcess, count: int) -> None:
    """So many datasets without data."""
    with flight.connect(server.location) as client:
        for number in range(count):
            request = CreateRequest(f"dataset-{number:06}")
            list(client.do_action(("create", request.encode())))


def partitions(server: ServerProcess, count: int) -> None:
    """A shuffle of so many partitions, each with one frame of one row."""
    create(server, CreateRequest("partitions", Kind.SHUFFLE, partitions=count, producers=1))
    _write_shuffle(server, "partitions", (b"%d" % number for number in range(count)), count)


SCENARIOS: tuple[Scenario, ...] = (
    # Records of 2 M frames do not fit a quarter of 64 MiB: the producer is refused, typed and in time.
    Scenario("2 M frames of a stream", frames_of_one_row, 2_000_000, 64 * MIB, refused=True),
    Scenario("2 M frames of a stream", frames_of_one_row, 2_000_000, 256 * MIB),
    Scenario("2 M frames of a shuffle", frames_of_one_row_in_a_shuffle, 2_000_000, 256 * MIB),
    Scenario("100,000 datasets", datasets, 100_000, 256 * MIB, refused=True),
    Scenario("100,000 datasets", datasets, 100_000, 2048 * MIB),
    Scenario("100,000 partitions", partitions, 100_000, 256 * MIB, refused=True),
    Scenario("100,000 partitions", partitions, 100_000, 1024 * MIB),
    Scenario("schemas of 4 MiB", bombs.large_schemas, 100, 256 * MIB, refused=True),
    Scenario("schemas of 4 MiB", bombs.large_schemas, 100, 2048 * MIB),
    Scenario("schemas of 10,000 columns", bombs.wide_schemas, 50, 256 * MIB),
    Scenario("headers that share texts", bombs.folded_headers, 100, 64 * MIB),
    Scenario("JSON bodies", bombs.json_bodies, 96, 64 * MIB),
    Scenario("Flight messages of empty fields", bombs.flight_messages, 60, 256 * MIB),
    Scenario("compressed batches", bombs.compressed_batches, 200, 256 * MIB),
    Scenario("requests that never arrive whole", footprint_calls.unfinished_requests, 12, 64 * MIB),
    # gRPC holds some KiB of each call that the event loop has not accepted, or ended, yet: most of a burst.
    Scenario(
        "calls that send nothing",
        footprint_calls.silent_calls,
        8000,
        64 * MIB,
        beyond_bytes=BEYOND_LIMIT_BYTES + 8000 * footprint_calls.CALL_BYTES,
    ),
    Scenario(
        "bulk puts that stand still", footprint_calls.stalled_bulk_puts, 100, 64 * MIB, {"stall_seconds": 0.2}
    ),
    Scenario("JSON bodies of 45 MiB", footprint_calls.large_bodies, 10, 64 * MIB),
    Scenario("compressed requests", bombs.compressed_requests, 20, 64 * MIB),
    Scenario("FlightInfos of 100,000 partitions at once", footprint_held.flight_infos, 12, 64 * MIB),
    # One message and one window for each producing stream, and twice an echo.
    Scenario(
        "puts whose echoes are not read",
        footprint_held.unread_echoes,
        60,
        64 * MIB,
        beyond_bytes=BEYOND_LIMIT_BYTES + 60 * (4 * MIB + MIB // 8) + 8 * MIB,
    ),
    Scenario(
        "sources with schemas of 5 MiB",
        footprint_held.source_schemas,
        60,
        256 * MIB,
        footprint_held.SOURCES,
        refused=True,
    ),
    Scenario("delta dictionaries", footprint_held.delta_dictionaries, 10_000, 64 * MIB),
    Scenario("compressed IPC files", footprint_held.compressed_sources, 3, 64 * MIB, footprint_held.SOURCES),
    Scenario(
        "puts into a changelog",
        footprint_held.changelog_puts,
        100,
        64 * MIB,
        beyond_bytes=BEYOND_LIMIT_BYTES + CHANGELOG_BYTES,
    ),
)


def create(server: ServerProcess, request: CreateRequest) -> None:
    """Create a dataset."""
    with flight.connect(server.location) as client:
        list(client.do_action(("create", request.encode())))


def _write_shuffle(server: ServerProcess, dataset: str, places: Iterator[bytes], count: int) -> None:
    descriptor = raw_flight.command({"dataset": dataset, "producer": 0, "attempt": "0"})
    _put(server, descriptor, places, end=[raw_flight.commit(count, count)])


def _put(server: ServerProcess, descriptor: bytes, metadata: Iterator[bytes], end: list[bytes]) -> None:
    """Frames of one row on the bulk lane, each with its app_metadata."""
    first, _, *_ = raw_flight.put_messages(descriptor, [ONE_ROW])
    batch = raw_flight.ipc_messages(ONE_ROW.schema, [ONE_ROW])[1]
    frames = (raw_flight.flight_data(batch.header, batch.body, metadata=each) for each in metadata)
    with raw_put.RawPut(f"{server.http}/v1/put") as put:
        put.socket.settimeout(None)
        block: list[bytes] = []
        with suppress(ConnectionError):  # it has been refused, and the answer says why
            for message in chain([first], frames, end):
                block.append(message)
                if len(block) == MESSAGES_AT_ONCE:
                    put.send(*block)
                    block.clear()
            put.send(*block)
            put.raw(raw_put.END)
        put.answers()


def run(scenario: Scenario, scale: float = 1.0) -> Footprint:
    """Run one scenario; ``scale`` is the share of its full size."""
    settings: dict[str, Any] = {"memory_limit": scenario.memory_limit_bytes, **scenario.settings}
    with ServerProcess.start(**settings) as server:
        rest_bytes, error = server.rss_bytes(), ""
        try:
            scenario.work(server, max(1, int(scenario.count * scale)))
        except (
            pa.ArrowException,
            OSError,
            raw_flight.Refused,
            raw_put.Refused,
            raw_put.BrokenOff,
            RuntimeError,
        ) as refused:
            error = f"{type(refused).__name__}: {str(refused).splitlines()[0]}"
        peak_bytes, after_bytes = server.peak_rss_bytes(), server.rss_bytes()
        pool_peak_bytes = _pool_peak_bytes(server)
    return Footprint(rest_bytes, peak_bytes, after_bytes, pool_peak_bytes, error)


def _pool_peak_bytes(server: ServerProcess) -> int:
    """By the server's own count. Not from its statistics, which grow with what is there."""
    name = 'flight_shuffle_memory_peak_bytes{account="all"} '
    with urlopen(f"{server.http}/metrics") as answer:
        (line,) = (line for line in answer.read().decode().splitlines() if line.startswith(name))
    return int(float(line.removeprefix(name)))


def main(arguments: list[str]) -> None:
    """Print the table; the process ends with 1 if a scenario has not passed."""
    parser = argparse.ArgumentParser(prog="footprint")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    options = parser.parse_args(arguments)
    console.print(f"[bold]Footprint[/bold] · {conditions(1)}")
    rows, failed = [], False
    for scenario in SCENARIOS:
        if options.only in scenario.name:
            found = run(scenario, options.scale)
            refused = scenario.refused and REFUSAL in found.error
            passed = (refused or not found.error) and found.peak_bytes <= scenario.allowed_bytes
            failed |= not passed
            told = "yes, refused" if refused else "yes"
            rows.append(_row(scenario, found, told if passed else found.error or "no"))
    table(f"Sizes in MiB, {options.scale:g} of the full size", COLUMNS, rows)
    if failed:
        sys.exit(1)


def _row(scenario: Scenario, found: Footprint, passed: str) -> list[str]:
    sizes = (found.rest_bytes, found.peak_bytes, found.after_bytes)
    return [
        scenario.name,
        f"{scenario.memory_limit_bytes / MIB:.0f}",
        *(f"{size / MIB:.0f}" for size in sizes),
        f"{scenario.allowed_bytes / MIB:.0f}",
        f"{found.pool_peak_bytes / MIB:.0f}",
        passed,
    ]
