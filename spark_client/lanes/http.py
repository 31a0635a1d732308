"""HTTP/1.1 for the bulk lane: connections that are used again, and bodies whose end is checked.

Guarantee: a body that was cut, at any byte, is a ``ConnectionResetError``, never ``http.client``'s short read.

Receiving
    Lines come out of a small buffer, which each of them fills with one call to the kernel; so the first bytes of a body
    are copied out of it. The rest of a body goes from the kernel into the caller's memory: ``MSG_WAITALL`` lets one
    call wait for all of it, so the thread neither polls nor takes the interpreter's lock between the segments. The
    kernel measures the time, of a socket that blocks, by ``SO_RCVTIMEO``. A call that has got a part of its bytes
    returns them only when its time is over, and the silence may have begun with the call. So a call waits for the
    ``WAITS`` th part of the limit, and so many in turn must get nothing: silence is noticed after at most 1 + 1 /
    ``WAITS`` of the limit. Over TLS each call returns what one record brings, and Python's socket measures the time.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from io import BufferedIOBase
from urllib.parse import urlsplit

import pyarrow as pa

from flight_server.protocol import (
    CHECKSUMS,
    CHECKSUMS_HEADER,
    FlightShuffleError,
    Forbidden,
    Unauthenticated,
    Unavailable,
    bracketed,
    from_json,
)
from flight_server.tracing import traceparent
from spark_client.connection import RemoteServer, Timeouts, TlsContexts, about_credentials

BUFFER_BYTES = 16 << 10
"""A few times the longest head of a chunk (``flight_server.lanes.http.chunks``)."""
AT_ONCE_BYTES = 1 << 20
"""A call waits for no more, so that a slow peer's bytes count as progress while they come."""


WAITS = 4
MAX_BUSY = 32
MAX_IDLE = 8
ERROR_BODY_BYTES = 64 << 10
_MAX_LINE_BYTES = 8 << 10
_RESET = struct.pack("ii", 1, 0)


class Arrivals:
    """The receiving side of a connected socket. One thread reads; the socket's owner closes it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        secure = isinstance(sock, ssl.SSLSocket)
        self._flags = 0 if secure else socket.MSG_WAITALL
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._at = self._stop = 0  # the bytes of the buffer that are not taken
        if not secure:
            sock.settimeout(None)

    def wait_at_most(self, seconds: float) -> None:
        """Later calls raise TimeoutError once the peer has sent nothing for so long."""
        if not self._flags:
            self._sock.settimeout(seconds)
            return
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds / WAITS))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))

    def readline(self, limit: int) -> bytes:
        """The next line with its end; without it ``limit`` bytes, or fewer at the end of the connection."""
        line = b""
        while True:
            rest = bytes(self._buffer[self._at : min(self._stop, self._at + limit - len(line))])
            end = rest.find(b"\n") + 1
            if end or len(line) + len(rest) == limit:
                rest = rest[:end] if end else rest
                self._at += len(rest)
                return line + rest
            line += rest
            self._at = self._stop = 0
            self._stop = self.readinto(self._buffer, flags=0)
            if not self._stop:
                return line

    def readinto(self, view: memoryview, *, flags: int | None = None) -> int:
        """Fill a part of the view, which is not empty; its size, 0 at the end of the connection. ``flags`` of the call
        to the kernel, if not this object's.
        """
        ready = self._stop - self._at
        if not ready:
            for _ in range(WAITS):
                try:
                    return self._sock.recv_into(
                        view[:AT_ONCE_BYTES], 0, self._flags if flags is None else flags
                    )
                except BlockingIOError:
                    continue
            raise TimeoutError("timed out")
        count = min(ready, len(view))
        view[:count] = self._buffer[self._at : self._at + count]
        self._at += count
        return count

    def rest(self) -> bytes:
        """The bytes that were received and not taken."""
        return bytes(self._buffer[self._at : self._stop])


def _timeval(seconds: float) -> bytes:
    return struct.pack("@ll", *divmod(max(1, int(seconds * 1e6)), 1_000_000))


_STATUS, _LENGTH = re.compile("[0-9]{3}"), re.compile("[0-9]{1,18}")


class NoBulkLane(Unavailable):
    """No server at this address speaks the bulk lane."""

    code = "no_bulk_lane"


class PassedOver(NoBulkLane):
    """The address was not tried: others failed there a moment ago, or have all of its ``max_busy`` connections."""

    code = "passed_over"


class HttpPool:
    """Connections to one ``http://`` or ``https://`` address in one process. Thread-safe.

    Each carries one stream at a time. The pool keeps up to ``max_idle`` unused ones, but none whose stream was not
    read to its end. ``max_busy`` None is no limit.
    """

    def __init__(
        self, url: str, server: RemoteServer, *, max_busy: int | None = MAX_BUSY, max_idle: int = MAX_IDLE
    ) -> None:
        parts = urlsplit(url)
        self.location = f"{parts.scheme}://{parts.netloc}"
        self.named = self.location
        """In an error of the connection: with the server, where that has another name."""
        if parts.hostname != urlsplit(server.location).hostname:
            self.named += f", where {server.location} sends its clients by its --advertise-host or host name"
        self._where = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._timeouts = server.timeouts
        secure = parts.scheme == "https"
        self._tls = TlsContexts(server.tls_root_certs, server.client_certificate) if secure else None
        self._slots = None if max_busy is None else threading.BoundedSemaphore(max_busy)
        self._max_idle = max_idle
        self._idle: list[Connection] = []
        self._closed = False
        self._lock = threading.Lock()
        self._left_alone: tuple[float, str] = (0.0, "")

    def leave_alone(self, seconds: float, error: FlightShuffleError) -> None:
        """The address failed: streams with ``lane="auto"`` skip it for this long."""
        self._left_alone = time.monotonic() + seconds, error.message

    @property
    def left_alone(self) -> str | None:
        """Why the address is skipped now; None if it is not."""
        until, why = self._left_alone
        return f"it has just failed: {why}" if time.monotonic() < until else None

    def acquire(self, *, wait_seconds: float, beyond: bool) -> Connection | None:
        """A connection with one of the ``max_busy`` slots.

        If none came free within ``wait_seconds``: one without a slot if ``beyond``, else None.
        """
        has_slot = self._slots is not None and self._slots.acquire(timeout=wait_seconds)
        if self._slots is not None and not has_slot and not beyond:
            return None
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self.new()
        connection.has_slot = has_slot
        return connection

    def new(self) -> Connection:
        """A connection without a slot, opened by its first request."""
        return Connection(self._where, self._tls, self._timeouts)

    def release(self, connection: Connection, *, reusable: bool) -> None:
        """Give a connection and its slot back; ``reusable`` when its last answer was read to the end."""
        if self._slots is not None and connection.has_slot:
            connection.has_slot = False
            self._slots.release()
        if reusable:
            with self._lock:
                if not self._closed and len(self._idle) < self._max_idle:
                    connection.reused = True
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        """Close the unused connections; one that is released later is closed then."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class Connection:
    """One HTTP/1.1 connection, which is closed with its last reference at the latest."""

    def __init__(self, where: tuple[str, int], tls: TlsContexts | None, timeouts: Timeouts) -> None:
        self.has_slot = False
        self.reused = False
        self._interrupted = False
        self._pid = os.getpid()
        self._where = where
        self._tls = tls
        self._timeouts = timeouts
        self.sock: socket.socket | None = None
        self.file: Arrivals | None = None
        self._finalizer: weakref.finalize[..., Connection] | None = None

    def request(
        self, target: str, headers: dict[str, str], method: str = "GET"
    ) -> tuple[int, dict[str, str]]:
        """Send a request without a body; the answer's status, and its headers by names in lower case. Raises
        Unauthenticated: the client's certificate cannot be read, or does not fit its key.
        """
        if self.sock is None:
            self.speak_over(self._open())
        if self._interrupted:
            raise ConnectionAbortedError("cancelled")
        self.wait_at_most(self._timeouts.first_message_seconds)
        host, port = self._where
        named = f"{bracketed(host)}:{port}"
        lines = [f"{method} {target} HTTP/1.1", f"Host: {named}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        assert self.sock is not None
        self.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
        assert self.file is not None
        status_line = _line(self.file)
        parts = status_line.split(" ", 2)
        if not parts[0].startswith("HTTP/1.") or len(parts) < 2 or not _STATUS.fullmatch(parts[1]):
            raise NoBulkLane(f"{named} does not speak HTTP/1.1: it answered {status_line[:80]!r}")
        return int(parts[1]), _headers(self.file)

    def speak_over(self, sock: socket.socket) -> None:
        """Speak over this socket, which is connected, and close it."""
        # ``__del__`` would come too late: of objects in a cycle the collector may finalize the socket first.
        self._finalizer = weakref.finalize(self, sock.close)
        self._finalizer.atexit = False
        self.sock, self.file = sock, Arrivals(sock)

    def body(self, headers: Mapping[str, str]) -> Body:
        """That of the answer with these headers."""
        assert self.file is not None
        return Body(self.file, headers)

    def upgraded(self) -> tuple[socket.socket, bytes]:
        """After an upgrade: the socket, now non-blocking, and the bytes received after the answer's head.

        ``file`` must not be read any more.
        """
        assert self.sock is not None
        assert self.file is not None
        self.sock.settimeout(0)
        return self.sock, self.file.rest()

    def _open(self) -> socket.socket:
        sock = socket.create_connection(self._where, self._timeouts.connect_seconds)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer that vanished is found within a minute, not at the stall deadline.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            if self._tls is not None:
                sock = self._tls.newest().wrap_socket(sock, server_hostname=self._where[0])
        except BaseException:
            sock.close()
            raise
        return sock

    def wait_at_most(self, seconds: float) -> None:
        assert self.file is not None
        self.file.wait_at_most(seconds)

    def interrupt(self) -> None:
        """End a waiting read, and every later one, at once, and let ``close`` reset the connection; from any thread.

        The shutdown reaches the server even if a forked child still has the socket. The reset tells a server that
        writes or waits that this client has left, which the shutdown does not. In a forked child both would end the
        parent's connection, so there they are left out.
        """
        self._interrupted = True
        sock = self.sock
        if sock is not None and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()


LineFile = Arrivals | BufferedIOBase


def _line(file: LineFile) -> str:
    line = file.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the connection was closed")
    return line.rstrip(b"\r\n").decode("latin-1")


def _headers(file: LineFile) -> dict[str, str]:
    headers: dict[str, str] = {}
    while line := _line(file):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


class Body:
    """The HTTP body. ``ended``: all of it was received."""

    def __init__(self, file: LineFile, headers: Mapping[str, str]) -> None:
        self._file = file
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        if not self._chunked and not _LENGTH.fullmatch(length):
            raise NoBulkLane("the answer has neither chunks nor a length, so its end could not be known")
        self._left = 0 if self._chunked else int(length)
        self._back = memoryview(b"")
        self._first = True
        self.announced: deque[tuple[int, int]] = deque()
        """Size and CRC-32C of the present chunk's unread messages, if the server sends them."""
        self.ended = not self._chunked and self._left == 0
        self.trailers: dict[str, str] = {}

    def _next_chunk(self) -> None:
        """Read the next chunk's head; then ``_left`` is positive, or the body has ended."""
        if not self._chunked:
            self.ended = True
            return
        if not self._first and _line(self._file):
            raise ConnectionResetError("a chunk is longer than it said")
        self._first = False
        size, _, extension = _line(self._file).partition(";")
        try:
            self._left = int(size.strip(), 16)
        except ValueError:
            raise ConnectionResetError(f"{size[:20]!r} is not the size of a chunk") from None
        self._read_checksums(extension)
        if self._left == 0:
            self.trailers = _headers(self._file)
            self.ended = True

    def _read_checksums(self, extension: str) -> None:
        self.announced.clear()
        name, _, value = extension.partition("=")
        if name.strip() != CHECKSUMS:
            return
        total_bytes = 0
        try:
            for pair in value.strip().split("."):
                size, checksum = pair.split("-")
                self.announced.append((int(size, 16), int(checksum, 16)))
                total_bytes += self.announced[-1][0]
        except ValueError:
            raise ConnectionResetError(f"{value[:40]!r} are not the checksums of a chunk") from None
        if total_bytes != self._left:
            raise ConnectionResetError(f"a chunk of {self._left} bytes has messages of another size")

    @property
    def between_chunks(self) -> bool:
        return self._chunked and not self.ended and not self._left and not self._back

    def next_chunk_bytes(self) -> int:
        """Wait for the next chunk's head; its size. 0 inside a chunk, without chunks, and at the body's end."""
        if not self.between_chunks:
            return 0
        self._next_chunk()
        return self._left

    def hand_over(self) -> Callable[[memoryview], int]:
        """The caller receives all of the chunk that has just begun by this function, which fills a part of a view; 0
        if the connection was closed.
        """
        self._left = 0
        return self._file.readinto

    def give_back(self, rest: memoryview) -> None:
        """Make the last bytes read readable again. Only at the end of a chunk."""
        self._back = rest

    def fill(self, view: memoryview) -> int:
        """Fill the view; the number of bytes, fewer only at the end of the body."""
        done = min(len(self._back), len(view))
        view[:done], self._back = self._back[:done], self._back[done:]
        while done < len(view):
            if self._left == 0:
                if not self.ended:
                    self._next_chunk()
                if self.ended:
                    break
            count = self._file.readinto(view[done : done + self._left])
            if not count:
                raise ConnectionResetError("the connection was closed in the middle of the body")
            done += count
            self._left -= count
        return done

    def read_buffer(self, size: int) -> pa.Buffer:
        """As :meth:`fill`, for Arrow's decoder."""
        buffer = pa.allocate_buffer(size)
        count = self.fill(memoryview(buffer).cast("B")) if size else 0
        return buffer if count == size else buffer.slice(0, count)

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = ERROR_BODY_BYTES
        data = bytearray(size)
        return bytes(data[: self.fill(memoryview(data))])

    def finish(self) -> None:
        """Check that the HTTP body ends here, after Arrow's end marker. Raises ConnectionResetError: it does not, or it
        ended without the marker.
        """
        if self._back:
            raise ConnectionResetError("the body goes on after Arrow's end marker")
        if self.ended:
            # Arrow's decoder accepts the end of the body as an end marker.
            raise ConnectionResetError("the body ended without Arrow's end marker")
        if self._left == 0:
            self._next_chunk()
        if not self.ended:
            raise ConnectionResetError("the body goes on after Arrow's end marker")


def headers_for(server: RemoteServer) -> dict[str, str]:
    """Of each request to the server: it is to send checksums, the span of this call, and the token."""
    headers = {CHECKSUMS_HEADER: CHECKSUMS}
    if (parent := traceparent()) is not None:
        headers["traceparent"] = parent
    if (token := server.token) is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def refusal(where: str, status: int, body: Body) -> FlightShuffleError:
    """The server's own error in the body, or that of the status."""
    try:
        return about_credentials(from_json(body.read()), where)
    except ValueError:
        pass
    sentence = f"{where} answered status {status}"
    # A body without our JSON is a proxy's.
    kinds: dict[int, type[FlightShuffleError]] = {401: Unauthenticated, 403: Forbidden}
    return kinds.get(status, NoBulkLane)(sentence, server=where)
