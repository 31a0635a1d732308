"""The traffic of the memory benchmark: producers and readers as threads, each with its own connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import CreateRequest, Retention
from tests.support.server_process import ServerProcess

PARTITIONS = 16
READERS = 4
BATCHES = 100
BATCH_ROWS = 500_000
JOIN_DEADLINE_SECONDS = 300.0


@dataclass
class Readings:
    """What went wrong in one run."""

    failed: list[str] = field(default_factory=list)

    def fail(self, error: BaseException) -> None:
        self.failed.append(str(error).splitlines()[0][:120])


def create(server: ServerProcess) -> None:
    """A stream dataset that lets a frame go after its readers have passed it."""
    request = CreateRequest("d", partitions=PARTITIONS, retention=Retention(readers=READERS))
    with flight.connect(server.location) as client:
        list(client.do_action(("create", request.encode())))


def produce(server: ServerProcess, index: int, readings: Readings) -> None:
    """Write one partition, of one column of u8, as in the field's own benchmark."""
    values = np.random.default_rng(3).integers(0, 255, BATCH_ROWS, dtype=np.uint8)
    batch = pa.record_batch([values], names=["v"])
    try:
        with flight.connect(server.location) as client:
            writer, _ = client.do_put(flight.FlightDescriptor.for_path("d", str(index)), batch.schema)
            for _ in range(BATCHES):
                writer.write_batch(batch)
            writer.close()
    except pa.ArrowException as error:
        readings.fail(error)


def consume(
    server: ServerProcess,
    index: int,
    readings: Readings,
    *,
    wait_seconds: float = 0.0,
    leave_after: int | None = None,
) -> None:
    """Read one partition, perhaps slowly, perhaps leaving before its end."""
    got_bytes = count = 0
    try:
        with flight.connect(server.location) as client:
            stream = client.do_get(flight.Ticket(f"d/{index}".encode()))
            for chunk in stream:
                got_bytes += chunk.data.nbytes
                count += 1
                if wait_seconds:
                    time.sleep(wait_seconds)
                if leave_after is not None and count >= leave_after:
                    stream.cancel()
                    break
    except (pa.ArrowException, KeyError) as error:
        if leave_after is None:
            readings.fail(error)
    if leave_after is None and got_bytes != BATCHES * BATCH_ROWS:
        readings.failed.append(f"d/{index}: {got_bytes} of {BATCHES * BATCH_ROWS} bytes")


def run_all(*work: Callable[[], None]) -> None:
    """Run everything at once, until the last has ended."""
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_DEADLINE_SECONDS)
        if thread.is_alive():
            raise RuntimeError("a reader or producer hangs")
