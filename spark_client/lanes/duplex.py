"""The connection of a put after its upgrade: sends messages and receives answers in one thread.

Guarantee: the server's error is raised as soon as it has arrived, also while the server takes nothing, and instead of
the connection's own error if the connection broke before the answer was read.

Waiting
    The socket does not block: a call that waits polls both directions. ``send`` waits at most ``stall_seconds`` until
    the server takes a byte, ``finish`` as long for a byte of an answer. Python's signal handlers run meanwhile and may
    end the wait (Ctrl-C, a killed task). So does ``Connection.interrupt``, from any thread, by ending the connection.
    Each call first reads the bytes that have arrived: one system call, no wait.
"""

from __future__ import annotations

import itertools
import select
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from flight_server.protocol import ACCEPTED, ANSWER_HEAD, REFUSED, RESULT, FlightShuffleError, from_json

from .http import Connection
from .messages import Part

MAX_ANSWER_BYTES = 64 << 20
"""All answers to one put: the one to a commit has the sizes of up to 100,000 partitions."""
PARTS_AT_ONCE = 256
_RECEIVE_BYTES = 16 << 10
TLS_BLOCK_BYTES = 64 << 10


class AnswerReader:
    """Parses the server's answers. ``results`` are its PutResults that were not taken."""

    def __init__(self) -> None:
        self.results: list[bytes] = []
        self.error: FlightShuffleError | None = None
        self.accepted = False
        self._data = bytearray()
        self._came_bytes = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Parse received bytes. Raises ConnectionError: they are no answer, or all answers together exceed
        ``MAX_ANSWER_BYTES``.
        """
        self._came_bytes += len(data)
        if self._came_bytes > MAX_ANSWER_BYTES:
            raise ConnectionAbortedError(f"the answers are longer than {MAX_ANSWER_BYTES} bytes")
        self._data += data
        while len(self._data) >= ANSWER_HEAD.size and not self.ended:
            kind, size_bytes = ANSWER_HEAD.unpack_from(self._data)
            if kind not in (RESULT, REFUSED, ACCEPTED) or size_bytes > MAX_ANSWER_BYTES:
                raise ConnectionAbortedError(f"{bytes(self._data[:20])!r} is not an answer to a put")
            end = ANSWER_HEAD.size + size_bytes
            if len(self._data) < end:
                return
            self._take(kind, bytes(self._data[ANSWER_HEAD.size : end]))
            del self._data[:end]

    def take(self) -> bytes:
        """The oldest result, whose bytes no longer count."""
        result = self.results.pop(0)
        self._came_bytes -= ANSWER_HEAD.size + len(result)
        return result

    @property
    def ended(self) -> bool:
        return self.accepted or self.error is not None

    def _take(self, kind: bytes, data: bytes) -> None:
        if kind == RESULT:
            self.results.append(data)
        elif kind == ACCEPTED:
            self.accepted = True
        else:
            try:
                self.error = from_json(data)
            except ValueError:
                raise ConnectionAbortedError(f"{data[:80]!r} is not an error of the server") from None


class Duplex:
    """For one thread. The caller closes the connection."""

    def __init__(self, connection: Connection, stall_seconds: float) -> None:
        self._sock, came = connection.taken_over()
        self._secure = isinstance(self._sock, ssl.SSLSocket)
        self._stall_seconds = stall_seconds
        self._poll = select.poll()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._answers = AnswerReader()
        self._answers.feed(came)

    def send(self, parts: Iterable[Part]) -> None:
        """Return when the kernel has taken all of it.

        Raises:
            FlightShuffleError: the server's error.
            TimeoutError: the server took nothing for ``stall_seconds``.
            OSError: the connection broke.
        """
        left = deque(_blocks(parts) if self._secure else (memoryview(part) for part in parts if part))
        until_seconds = time.monotonic() + self._stall_seconds
        self._listen()
        while left:
            if self._answers.accepted:
                raise ConnectionAbortedError("the server ended the put before all of it was sent")
            try:
                _drop(left, self._send_some(left))
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, until_seconds)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLIN | select.POLLOUT, until_seconds)
            except OSError:
                self._listen()
                raise
            else:
                until_seconds = time.monotonic() + self._stall_seconds

    def result(self) -> bytes:
        """Wait for the server's next PutResult, in a put that goes on. Raises as :meth:`send`."""
        self._wait_until(lambda: bool(self._answers.results) or self._answers.accepted)
        if not self._answers.results:
            raise ConnectionAbortedError("the server ended the put before it answered the commit")
        return self._answers.take()

    def finish(self) -> list[bytes]:
        """Wait until the server has accepted the put; its PutResults. Raises as :meth:`send`."""
        self._wait_until(lambda: self._answers.accepted)
        return self._answers.results

    def _wait_until(self, done: Callable[[], bool]) -> None:
        until_seconds = time.monotonic() + self._stall_seconds
        self._listen()
        while not done():
            if self._wait(select.POLLIN, until_seconds):
                until_seconds = time.monotonic() + self._stall_seconds

    def _send_some(self, parts: deque[memoryview]) -> int:
        if self._secure:
            return self._sock.send(parts[0])
        return self._sock.sendmsg(itertools.islice(parts, PARTS_AT_ONCE))

    def _wait(self, events: int, until_seconds: float) -> bool:
        """Wait for one of the events, and read the arrived bytes; whether there were any."""
        self._poll.register(self._sock, events)
        found = self._poll.poll(max(0.0, until_seconds - time.monotonic()) * 1000)
        if not found:
            raise TimeoutError(f"nothing for {self._stall_seconds:g} s")
        return self._listen() if found[0][1] & ~select.POLLOUT else False

    def _listen(self) -> bool:
        """Read the arrived bytes, without waiting; whether there were any. Raises the server's error."""
        came = False
        while not self._answers.ended:
            try:
                count = self._sock.recv_into(self._buffer)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not count:
                raise ConnectionResetError("the server closed the connection")
            self._answers.feed(self._buffer[:count])
            came = True
        if self._answers.error is not None:
            raise self._answers.error.fresh()
        return came


def _drop(parts: deque[memoryview], size_bytes: int) -> None:
    while size_bytes:
        part = parts.popleft()
        if len(part) > size_bytes:
            parts.appendleft(part[size_bytes:])
        size_bytes -= min(size_bytes, len(part))


def _blocks(parts: Iterable[Part]) -> Iterator[memoryview]:
    """The same bytes, small parts joined: TLS copies them anyway, and makes a record of each part."""
    small: list[Part] = []
    size_bytes = 0
    for part in parts:
        if size_bytes + len(part) > TLS_BLOCK_BYTES:
            if small:
                yield memoryview(b"".join(small))
            small, size_bytes = [], 0
        if len(part) > TLS_BLOCK_BYTES:
            yield memoryview(part)
        else:
            small.append(part)
            size_bytes += len(part)
    if small:
        yield memoryview(b"".join(small))
