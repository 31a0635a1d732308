"""Fan-out of one dataset to many readers: raw TCP, pyarrow's C++ server, our gRPC lane, our bulk lane.

What is compared: the same batches, read to the end by 1 to 32 readers at once: processes, as Spark's tasks
are, or with ``--where threads`` threads of one process, which then share one interpreter.
``peer`` is pyarrow's server read by pyarrow's client; ``gRPC lane`` is ours read by the same client;
``bulk lane`` is ours read through the public client (``get``), with decoded batches
delivered to the consumer; ``raw TCP`` moves as many bytes with ``recv_into`` and is the limit.

Under the tables stands what is aimed at: how the lanes compare with the peer and with raw TCP.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial

from pyarrow import flight

from tests.benchmarks.crowd import Crowd, Where, read_tcp, read_with_client, read_with_pyarrow
from tests.benchmarks.measure import (
    MIB,
    Subject,
    conditions,
    console,
    measure,
    ratio,
    table,
)
from tests.benchmarks.peers import PeerProcess, batch_of
from tests.support.processes import status_bytes
from tests.support.server_process import ServerProcess

SIZES = (8 << 10, 64 << 10, 1 << 20, 4 << 20)
READERS = (1, 4, 8, 32)
TOTAL_BYTES = 128 * MIB
SMALL_TOTAL_BYTES = 32 * MIB  # frames under 64 KiB: as many messages as matter, in bounded time


def put(location: str, dataset: str, size_bytes: int, count: int) -> None:
    """Store ``count`` batches with pyarrow's client."""
    batch = batch_of(size_bytes)
    with flight.connect(location) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path(dataset), batch.schema)
        for _ in range(count):
            writer.write_batch(batch)
        writer.close()


def main(arguments: list[str]) -> None:
    """Print one table for each frame size."""
    parser = argparse.ArgumentParser(prog="fan_out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="frame bodies, bytes")
    parser.add_argument("--readers", type=int, nargs="*", default=READERS)
    parser.add_argument("--where", choices=("processes", "threads"), default="processes", help="the readers")
    options = parser.parse_args(arguments)
    console.print(f"[bold]Fan-out[/bold] · {conditions(options.rounds)}; readers in {options.where}")
    compared = []
    for size_bytes in options.sizes:
        rows = []
        for readers in options.readers:
            found, subjects = _rows(size_bytes, readers, options.where, options.rounds)
            rows += found
            compared.append([f"{size_bytes >> 10} KiB", str(readers), *_ratios(subjects)])
        table(
            f"Frames of {size_bytes >> 10} KiB",
            ["readers", "subject", "GB/s", "x peer", "server CPU s/GB", "client CPU s/GB", "server peak MiB"],
            rows,
        )
    table(
        "Throughput, medians of the rounds' ratios",
        [
            "frames of",
            "readers",
            "bulk lane x peer",
            "bulk lane x raw TCP",
            "gRPC lane x peer",
            "raw TCP x peer",
        ],
        compared,
    )


def _ratios(subjects: dict[str, Subject]) -> list[str]:
    """In the order of the last table."""
    pairs = (
        ("bulk lane", "peer"),
        ("bulk lane", "raw TCP"),
        ("gRPC lane", "peer"),
        ("raw TCP", "peer"),
    )
    return [f"{ratio(subjects[mine], subjects[theirs]):.2f}" for mine, theirs in pairs]


def _rows(
    size_bytes: int, readers: int, where: Where, rounds: int
) -> tuple[list[list[str]], dict[str, Subject]]:
    """The rows, and the subjects by name."""
    total_bytes = TOTAL_BYTES if size_bytes >= 64 << 10 else SMALL_TOTAL_BYTES
    count = total_bytes // size_bytes
    with ExitStack() as stack:
        tcp = stack.enter_context(PeerProcess("tcp", size_bytes, count))
        cpp = stack.enter_context(PeerProcess("flight", size_bytes, count))
        ours = stack.enter_context(ServerProcess.start(memory_limit="2GiB"))
        crowd = stack.enter_context(Crowd(readers, where))
        put(ours.location, "d", size_bytes, count)
        ways = {
            "raw TCP": (read_tcp, f"127.0.0.1:{tcp.port}", tcp.pid),
            "peer": (read_with_pyarrow, cpp.location, cpp.pid),
            "gRPC lane": (read_with_pyarrow, ours.location, ours.pid),
            "bulk lane": (read_with_client, ours.location, ours.pid),
        }
        subjects = [
            Subject(name, partial(crowd.run, read, location, "d", total_bytes), pid, crowd.cpu_seconds)
            for name, (read, location, pid) in ways.items()
        ]
        measure(subjects, rounds)
        named = {subject.name: subject for subject in subjects}
        rows = [
            [
                str(readers),
                subject.name,
                f"{subject.median(lambda sample: sample.gb_per_second):.2f}",
                f"{ratio(subject, named['peer']):.2f}",
                f"{subject.median(lambda sample: sample.server_cpu_seconds_per_gb):.2f}",
                f"{subject.median(lambda sample: sample.client_cpu_seconds_per_gb):.2f}",
                f"{status_bytes(subject.server_pid or 0, 'VmHWM') / MIB:.0f}",
            ]
            for subject in subjects
        ]
        return rows, named
