"""Arrivals: what a connection receives, by lines and into memory of the caller's.

Guarantee: :meth:`readline` and :meth:`readinto` return the connection's bytes, each once and in order.

How
    Lines come out of a small buffer, which each of them fills with one call to the kernel; so the first bytes of a body
    are copied out of it. The rest of a body goes from the kernel into the caller's memory: ``MSG_WAITALL`` lets one
    call wait for all of it, so the thread neither polls nor takes the interpreter's lock between the segments. The
    kernel measures the time, of a socket that blocks, by ``SO_RCVTIMEO``. A call that has got a part of its bytes
    returns them only when its time is over, and the silence may have begun with the call. So a call waits for the
    ``WAITS`` th part of the limit, and so many in turn must get nothing: silence is noticed after at most 1 + 1 /
    ``WAITS`` of the limit. Over TLS each call returns what one record brings, and Python's socket measures the time.
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress

BUFFER_BYTES = 16 << 10
"""A few times the longest head of a chunk (``flight_server.lanes.http.chunks``)."""
AT_ONCE_BYTES = 1 << 20
"""A call waits for no more, so that a slow peer's bytes count as progress while they come."""


WAITS = 4


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
            self._at, self._stop = 0, self._receive(self._buffer, 0)
            if not self._stop:
                return line

    def readinto(self, view: memoryview) -> int:
        """Fill a part of the view, which is not empty; its size, 0 at the end of the connection."""
        ready = self._stop - self._at
        if not ready:
            return self._receive(view[:AT_ONCE_BYTES], self._flags)
        count = min(ready, len(view))
        view[:count] = self._buffer[self._at : self._at + count]
        self._at += count
        return count

    def rest(self) -> bytes:
        """The bytes that were received and not taken."""
        return bytes(self._buffer[self._at : self._stop])

    def _receive(self, view: memoryview, flags: int) -> int:
        for _ in range(WAITS):
            with suppress(BlockingIOError):
                return self._sock.recv_into(view, 0, flags)
        raise TimeoutError("timed out")


def _timeval(seconds: float) -> bytes:
    return struct.pack("@ll", *divmod(max(1, int(seconds * 1e6)), 1_000_000))
