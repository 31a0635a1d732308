"""Readers that join: time to the first batch, CPU of each additional reader, a thousand readers at once."""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import flight

from flight_server.protocol.errors import FlightShuffleError
from tests.benchmarks.crowd import at_once, read_with_client, read_with_pyarrow
from tests.benchmarks.fan_out import put
from tests.benchmarks.measure import MIB, conditions, console, cpu_seconds, table
from tests.support.server_process import ServerProcess

DATASET_BYTES = 64 * MIB
FRAME_BYTES = MIB
JOINS = 200
CROWD = 1000


def main(arguments: list[str]) -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(prog="joining")
    parser.add_argument("--crowd", type=int, default=CROWD)
    options = parser.parse_args(arguments)
    console.print(f"[bold]Joining[/bold] · {conditions(1)}")
    _first_batches()
    _cpu_of_each_reader()
    _crowd(options.crowd)


def _stamped(stop: threading.Event) -> Iterator[pa.RecordBatch]:
    """A batch of 64 KiB every 2 ms with the moment in which it was handed to the client."""
    while not stop.is_set():
        yield pa.record_batch([pa.array(np.full(8192, time.monotonic_ns()))], names=["sent_ns"])
        time.sleep(0.002)


def _first_batches() -> None:
    """Join a dataset in production again and again; and follow it at its head."""
    stop = threading.Event()
    with ServerProcess.start(memory_limit="1GiB") as server, flight.connect(server.location) as client:

        def produce() -> None:
            batches = _stamped(stop)
            first = next(batches)
            with flight.connect(server.location) as producer:
                writer, _ = producer.do_put(flight.FlightDescriptor.for_path("live"), first.schema)
                for batch in batches:
                    writer.write_batch(batch)
                writer.close()

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            while not list(client.list_flights(b"live")):
                time.sleep(0.01)
            joins = []
            for _ in range(JOINS):
                started = time.perf_counter()
                stream = client.do_get(flight.Ticket(b"live"))
                stream.read_chunk()
                joins.append((time.perf_counter() - started) * 1e3)
                stream.cancel()
            head = client.do_get(flight.Ticket(b"live"))
            lags = []
            caught_up = time.monotonic_ns()
            for chunk in head:
                sent_ns = chunk.data.column(0)[0].as_py()
                if sent_ns > caught_up + 500_000_000:
                    lags.append((time.monotonic_ns() - sent_ns) / 1e6)
                if len(lags) >= JOINS:
                    head.cancel()
                    break
        finally:
            stop.set()
            thread.join()
    rows = [
        [
            "do_get to first batch, replay from the start",
            f"{statistics.median(joins):.2f}",
            f"{max(joins):.2f}",
        ],
        ["write_batch to batch, reader at the head", f"{statistics.median(lags):.2f}", f"{max(lags):.2f}"],
    ]
    table(f"A dataset in production, {JOINS} times", ["what", "median ms", "worst ms"], rows)


def _cpu_of_each_reader() -> None:
    rows = []
    with ServerProcess.start(memory_limit="1GiB") as server:
        put(server.location, "d", FRAME_BYTES, DATASET_BYTES // FRAME_BYTES)
        read_with_pyarrow(server.location, "d", DATASET_BYTES)
        for readers in (1, 2, 4, 8, 16, 32, 64):
            before = cpu_seconds(server.pid)
            at_once(readers, lambda: read_with_pyarrow(server.location, "d", DATASET_BYTES))
            spent = (cpu_seconds(server.pid) - before) / readers
            rows.append([str(readers), f"{spent * 1e3:.0f}"])
    table("Server CPU for each reader of a 64 MiB dataset", ["readers", "ms per reader"], rows)


def _crowd(readers: int) -> None:
    seconds: list[float] = []
    with ServerProcess.start(memory_limit="512MiB") as server:
        put(server.location, "d", FRAME_BYTES, DATASET_BYTES // FRAME_BYTES)
        started = time.perf_counter()

        def read() -> int:
            # Through the public client; pyarrow's clients, over gRPC, are what tests/load/test_crowd.py is about.
            try:
                got_bytes = read_with_client(server.location, "d", DATASET_BYTES)
            except FlightShuffleError as error:
                console.print(f"a reader failed: {error}")
                return 0
            seconds.append(time.perf_counter() - started)
            return got_bytes

        delivered_bytes = at_once(readers, read)
        total = time.perf_counter() - started
        peak_mib = server.peak_rss_bytes() / MIB
    median = statistics.median(seconds)
    table(
        f"{readers} readers at once, --memory-limit 512MiB",
        ["finished", "GB/s", "median s", "slowest s", "slowest / median", "RSS peak MiB"],
        [
            [
                f"{len(seconds)} of {readers}",
                f"{delivered_bytes / 1e9 / total:.2f}",
                f"{median:.1f}",
                f"{max(seconds):.1f}",
                f"{max(seconds) / median:.2f}",
                f"{peak_mib:.0f}",
            ]
        ],
    )
