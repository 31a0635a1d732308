"""The peers, each in a process of its own: pyarrow's C++ Flight server, and plain TCP."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pyarrow import flight

READY_DEADLINE_SECONDS = 30.0


def batch_of(size_bytes: int) -> pa.RecordBatch:
    """One batch of int64 with a body of ``size_bytes``, random, so that nothing compresses it."""
    values = np.random.default_rng(7).integers(0, 1 << 62, size_bytes // 8)
    return pa.record_batch([pa.array(values)], names=["value"])


class CppFlightServer(flight.FlightServerBase):
    """pyarrow's own server: serves the same batch again and again, and takes puts in."""

    def __init__(self, size_bytes: int, count: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._batch = batch_of(size_bytes)
        self._count = count

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Serve ``count`` batches, encoding each from memory as the C++ server does for any table."""
        reader = pa.RecordBatchReader.from_batches(self._batch.schema, [self._batch] * self._count)
        return flight.RecordBatchStream(reader)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Keep what comes until the stream ends, as a server that stores it must."""
        _kept = [chunk.data for chunk in reader]


def serve_tcp(size_bytes: int, count: int) -> None:
    """Send ``count`` messages of ``size_bytes`` to each client; print the port first."""
    message = memoryview(bytes(size_bytes))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_send, args=(connection, message, count), daemon=True).start()


def _send(connection: socket.socket, message: memoryview, count: int) -> None:
    with connection:
        for _ in range(count):
            connection.sendall(message)


class PeerProcess:
    """A peer in a child process; ``port`` is where it listens."""

    def __init__(self, kind: str, size_bytes: int, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.peers", kind, str(size_bytes), str(count)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.pid = self._process.pid

    @property
    def location(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(READY_DEADLINE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(kind: str, size_bytes: int, count: int) -> None:
    """Be the peer until killed."""
    if kind == "tcp":
        serve_tcp(size_bytes, count)
    else:
        server = CppFlightServer(size_bytes, count)
        print(server.port, flush=True)
        server.serve()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
