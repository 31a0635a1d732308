"""A server of the bulk lane's puts whose every byte the test decides, to stand in for odd and dying ones.

Each connection is a function of the test, which gets a :class:`PutSide` in a thread of its own: the request's
head has been read, nothing has been answered. When it returns the connection is closed; with what the client
has sent unread, that is a reset. An error in it fails the test when the server is closed.

Limits: one message in RAM at a time; a thread for each connection.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

import numpy as np
import pyarrow as pa

from flight_server.protocol import PutCommand
from spark_client.connection import RemoteServer, Timeouts
from spark_client.lanes.put_stream import PutStream

QUICK = Timeouts(connect_seconds=20, first_message_seconds=20, stall_seconds=20)
SCHEMA = pa.schema([("n", pa.int64())])
SMALL = pa.record_batch({"n": np.arange(10)})
LARGE = pa.record_batch({"n": np.arange(1 << 19)})
COMMAND = PutCommand("d", producer=0, attempt="1")
# No server listens there: the tests give these puts their places.
NOWHERE = "grpc://127.0.0.1:1"
UPGRADED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: flight-put\r\n"
    b"X-Flight-Shuffle-Checksums: crc32c\r\n\r\n"
)
DEADLINE_SECONDS = 20.0


def said(kind: bytes, data: bytes = b"") -> bytes:
    """An answer of the server."""
    return kind + struct.pack(">I", len(data)) + data


def committed(rows: int) -> bytes:
    """The answer to a commit."""
    return said(b"R", json.dumps({"committed": True, "rows": rows}).encode())


class PutSide:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(DEADLINE_SECONDS)
        self.head = b""
        while not self.head.endswith(b"\r\n\r\n"):
            if not (byte := sock.recv(1)):
                raise ConnectionResetError("no request came")
            self.head += byte

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def exactly(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            if not (more := self.sock.recv(size_bytes - len(data))):
                raise ConnectionResetError("the client has ended")
            data += more
        return data

    def message(self) -> bytes:
        """The next message; empty at the end of the put."""
        size_bytes, _ = struct.unpack(">II", self.exactly(8))  # and the checksum
        return self.exactly(size_bytes)

    def messages(self) -> list[bytes]:
        """All up to the end of the put."""
        return list(iter(self.message, b""))

    def broken_off(self) -> bool:
        """Wait until the client's side is gone; whether it was by a reset."""
        try:
            while self.sock.recv(64 << 10):
                pass
        except ConnectionResetError:
            return True
        return False


class PutSource:
    """Listens on a free port of the loopback; also a context manager."""

    def __init__(self, serve: Callable[[PutSide], object]) -> None:
        self.serve = serve
        self.heads: list[bytes] = []
        self.errors: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._spawn(self._accept)

    @property
    def place(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/put"

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="put source")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.append(sock)
                self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                side = PutSide(sock)
                self.heads.append(side.head)
                self.serve(side)
            except (ConnectionError, TimeoutError):
                pass  # the client was done first
            except BaseException as error:  # noqa: BLE001  # raised again in the test's thread
                self.errors.append(error)

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close()
        if kind is None and self.errors:
            raise self.errors[0]


def opened(server: RemoteServer, source: PutSource) -> PutStream:
    """A put of ``SCHEMA`` to the source."""
    return PutStream(server, COMMAND, SCHEMA, [source.place])


def write_forever(stream: PutStream) -> None:
    """Until it raises."""
    while True:
        stream.write(LARGE)
