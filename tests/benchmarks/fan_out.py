"""Fan-out of one dataset to many readers: raw TCP, pyarrow's C++ server, our gRPC lane, our bulk lane.

What is compared: the same batches, read to the end by 1 to 32 readers at once, threads of one process.
``peer`` is pyarrow's server read by pyarrow's client; ``gRPC lane`` is ours read by the same client;
``bulk lane`` is ours read through the public client (``ShuffleClient.get``), with decoded batches
delivered to the consumer; ``raw TCP`` moves as many bytes with ``recv_into`` and is the limit.
"""

from __future__ import annotations

import argparse
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack

from pyarrow import flight

from spark_client import ShuffleClient
from tests.benchmarks.measure import (
    MIB,
    Subject,
    conditions,
    console,
    measure,
    peak_resident_bytes,
    ratio,
    table,
)
from tests.benchmarks.peers import PeerProcess, batch_of
from tests.support.server_process import ServerProcess

SIZES = (8 << 10, 64 << 10, 1 << 20, 4 << 20)
READERS = (1, 4, 8, 32)
TOTAL_BYTES = 128 * MIB
SMALL_TOTAL_BYTES = 32 * MIB  # frames under 64 KiB: as many messages as matter, in bounded time


def at_once(readers: int, read: Callable[[], int]) -> int:
    """The bytes that ``readers`` threads delivered together."""
    delivered: list[int] = []
    errors: list[BaseException] = []

    def one() -> None:
        try:
            delivered.append(read())
        except BaseException as error:  # noqa: BLE001  # raised below, in the thread that measures
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(delivered)


def read_with_pyarrow(location: str, ticket: bytes, wanted_bytes: int) -> int:
    """One reader with pyarrow's client; every batch is decoded and counted."""
    with flight.connect(location) as client:
        got_bytes = sum(int(chunk.data.nbytes) for chunk in client.do_get(flight.Ticket(ticket)))
    assert got_bytes == wanted_bytes, (got_bytes, wanted_bytes)
    return got_bytes


def read_with_client(location: str, dataset: str, wanted_bytes: int) -> int:
    """One reader through the public client."""
    with ShuffleClient(location) as client:
        got_bytes = sum(int(batch.nbytes) for batch in client.get(dataset))
    assert got_bytes == wanted_bytes, (got_bytes, wanted_bytes)
    return got_bytes


def read_tcp(port: int, wanted_bytes: int) -> int:
    """One reader of plain bytes."""
    buffer = bytearray(MIB)
    got_bytes = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while count := connection.recv_into(buffer):
            got_bytes += count
    assert got_bytes == wanted_bytes, (got_bytes, wanted_bytes)
    return got_bytes


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
    options = parser.parse_args(arguments)
    console.print(f"[bold]Fan-out[/bold] · {conditions(options.rounds)}")
    for size_bytes in options.sizes:
        rows = []
        for readers in options.readers:
            rows += _rows(size_bytes, readers, options.rounds)
        table(
            f"Frames of {size_bytes >> 10} KiB",
            ["readers", "subject", "GB/s", "x peer", "server CPU s/GB", "client CPU s/GB", "server peak MiB"],
            rows,
        )


def _rows(size_bytes: int, readers: int, rounds: int) -> list[list[str]]:
    total_bytes = TOTAL_BYTES if size_bytes >= 64 << 10 else SMALL_TOTAL_BYTES
    count = total_bytes // size_bytes
    with ExitStack() as stack:
        tcp = stack.enter_context(PeerProcess("tcp", size_bytes, count))
        cpp = stack.enter_context(PeerProcess("flight", size_bytes, count))
        ours = stack.enter_context(ServerProcess.start(memory_limit="2GiB"))
        put(ours.location, "fan-out", size_bytes, count)
        peer = Subject(
            "peer",
            lambda: at_once(readers, lambda: read_with_pyarrow(cpp.location, b"x", total_bytes)),
            cpp.pid,
        )
        subjects = [
            Subject("raw TCP", lambda: at_once(readers, lambda: read_tcp(tcp.port, total_bytes)), tcp.pid),
            peer,
            Subject(
                "gRPC lane",
                lambda: at_once(readers, lambda: read_with_pyarrow(ours.location, b"fan-out", total_bytes)),
                ours.pid,
            ),
        ]
        if ours.http is not None:
            subjects.append(
                Subject(
                    "bulk lane",
                    lambda: at_once(readers, lambda: read_with_client(ours.location, "fan-out", total_bytes)),
                    ours.pid,
                )
            )
        measure(subjects, rounds)
        return [
            [
                str(readers),
                subject.name,
                f"{subject.median(lambda sample: sample.gb_per_second):.2f}",
                f"{ratio(subject, peer):.2f}",
                f"{subject.median(lambda sample: sample.server_cpu_seconds_per_gb):.2f}",
                f"{subject.median(lambda sample: sample.client_cpu_seconds_per_gb):.2f}",
                f"{peak_resident_bytes(subject.server_pid or 0) / MIB:.0f}",
            ]
            for subject in subjects
        ]
