"""Readers that join: time to the first batch of a dataset in production, a thousand readers at once."""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import numpy as np
import pyarrow as pa
from pyarrow import flight

from flight_server.protocol.errors import FlightShuffleError
from tests.benchmarks.crowd import at_once, read_with_client
from tests.benchmarks.fan_out import put
from tests.benchmarks.measure import MIB, conditions, console, table
from tests.support.server_process import ServerProcess

DATASET_BYTES = 64 * MIB
FRAME_BYTES = MIB
JOINS = 200
CROWD = 1000


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="joining")
    parser.add_argument("--crowd", type=int, default=CROWD)
    options = parser.parse_args(arguments)
    console.print(f"[bold]Joining[/bold] · {conditions(1)}")
    _first_batches()
    _crowd(options.crowd)


def _first_batches() -> None:
    """Join a dataset in production again and again."""
    stop = threading.Event()
    with ServerProcess.start(memory_limit="1GiB") as server, flight.connect(server.location) as client:

        def produce() -> None:
            batch = pa.record_batch([np.zeros(8192)], names=["x"])
            with flight.connect(server.location) as producer:
                writer, _ = producer.do_put(flight.FlightDescriptor.for_path("live"), batch.schema)
                while not stop.wait(0.002):
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
        finally:
            stop.set()
            thread.join()
    rows = [["do_get to first batch", f"{statistics.median(joins):.2f}", f"{max(joins):.2f}"]]
    table(f"A dataset in production, {JOINS} times", ["what", "median ms", "worst ms"], rows)


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
