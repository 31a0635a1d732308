"""Writing on the bulk lane: one HTTP connection for each put, upgraded, beyond the limits of ``http``.

Guarantee: see ``lane``. Errors are the server's own if it has sent one.

Before the upgrade
    Nothing of the put is sent before the server has agreed to the upgrade, so that it can take another address if
    this one does not speak the lane. A refusal of the server itself (token, drain) is raised.

Sending
    One thread sends messages and receives answers. The server's error is raised as soon as it has arrived, also while
    the server takes nothing, and instead of the connection's own error if the connection broke before the answer was
    read. Each call first reads the bytes that have arrived: one system call, no wait.

Waiting
    The socket does not block: a call that waits polls both directions. ``write`` waits at most ``stall_seconds`` until
    the server takes a byte, and its error names the reason why the server waits; ``finish`` as long for a byte of an
    answer. Python's signal handlers run meanwhile and may end the wait (Ctrl-C, a killed task). So does
    ``Connection.interrupt``, from any thread, by ending the connection.

Ending
    ``abandon`` shuts the connection down and resets it (``Connection.interrupt``).
"""

from __future__ import annotations

import itertools
import os
import select
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    ACCEPTED,
    ANSWER_HEAD,
    CHECKSUMS,
    CHECKSUMS_HEADER,
    REFUSED,
    RESULT,
    UPGRADE,
    Commit,
    FlightShuffleError,
    InvalidRequest,
    PutCommand,
    from_json,
)
from spark_client.connection import Compression, ForkedProcess, RemoteServer, TimedOut, Unreachable

from .http import Connection, HttpPool, NoBulkLane, headers_for, refusal
from .lane import BrokenStream, Closed
from .messages import MessageWriter, Part, most_to
from .read_stream import StreamStalled

MAX_ANSWER_BYTES = 64 << 20
"""All answers to one put: the one to a commit has the sizes of up to 100,000 partitions."""
PARTS_AT_ONCE = 256
_RECEIVE_BYTES = 16 << 10
TLS_BLOCK_BYTES = 64 << 10
HOLD_BYTES = 64 << 10
_NOT_THE_LANES = frozenset({400, 404, 405, 426, 501})
"""The statuses of a proxy, or of its server, that does not pass the upgrade; their bodies are not read."""


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
        self._sock, came = connection.upgraded()
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
        self.look()
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
                self.look()
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
        self.look()
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
        ready = self._poll.poll(max(0.0, until_seconds - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutError(f"nothing for {self._stall_seconds:g} s")
        return self.look() if ready[0][1] & ~select.POLLOUT else False

    def look(self) -> bool:
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


class BulkWriter:
    """A ``LaneWriter``. The constructor connects, and sends descriptor and schema.

    Raises:
        NoBulkLane: the server at this address does not speak the lane.
        Unreachable, TimedOut: no server answers there.
        FlightShuffleError: the server's error.
    """

    def __init__(
        self,
        pool: HttpPool,
        location: str,
        server: RemoteServer,
        command: PutCommand,
        schema: pa.Schema,
        *,
        compression: Compression = None,
    ) -> None:
        self._server = server
        self._dataset = command.dataset
        self._where, self._named = pool.location, pool.named
        self._pid = os.getpid()
        self._ended = False
        self._cancelled = False
        self._messages = MessageWriter(schema, None if compression == "auto" else compression)
        self._connection = pool.new()
        try:
            self._upgrade(location)
            if compression == "auto":
                self._messages.most = self._most()
            with self._errors():
                self._duplex = Duplex(self._connection, server.timeouts.stall_seconds)
                descriptor = flight.FlightDescriptor.for_command(command.encode()).serialize()
                self._duplex.send(self._messages.opening(descriptor))
        except BaseException:
            self.abandon()
            raise

    @property
    def place(self) -> str:
        return self._where

    def write(self, batch: Any, metadata: bytes, *, hold: bool) -> None:
        with self._errors():
            self._messages.add(batch, metadata)
            if hold and self._messages.waiting_bytes < HOLD_BYTES:
                self._messages.keep()
                self._duplex.look()
            else:
                self._duplex.send(self._messages.take())

    def commit(self, totals: Commit) -> bytes:
        with self._errors():
            self._duplex.send([*self._messages.take(), self._messages.metadata_only(totals.encode())])
            return self._duplex.result()

    def finish(self, totals: Commit | None) -> list[bytes]:
        with self._errors():
            parts = self._messages.take()  # first: the checksum runs over the messages in their order
            if totals is not None:
                parts.append(self._messages.metadata_only(totals.encode()))
            self._duplex.send([*parts, self._messages.end()])
            answers = self._duplex.finish()
        self._ended = True
        self._connection.close()
        return answers

    def cancel(self) -> None:
        self._cancelled = True
        self._connection.interrupt()

    def abandon(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._connection.interrupt()
        self._connection.close()

    def __del__(self) -> None:
        # The constructor may have failed, on a schema that cannot be encoded.
        if hasattr(self, "_connection"):
            self.abandon()

    # Inside.

    def _most(self) -> float:
        sock = self._connection.sock
        assert sock is not None
        return most_to(sock.getpeername()[0], sock.getsockname()[0])

    def _upgrade(self, location: str) -> None:
        headers = {"Connection": "Upgrade", "Upgrade": UPGRADE, "Content-Length": "0"}
        headers |= headers_for(self._server)
        try:
            status, answered = self._connection.request(_target(location), headers, "POST")
            if status != 101:
                raise self._refusal(status, answered)
        except TimeoutError as error:
            raise TimedOut(
                f"{self._where} did not answer to the put of dataset {self._dataset!r} in time",
                server=self._where,
                dataset=self._dataset,
            ) from error
        except OSError as error:
            raise Unreachable(
                f"the connection failed: {error} (dataset {self._dataset!r} at {self._named})",
                server=self._where,
                dataset=self._dataset,
            ) from error
        if answered.get("upgrade", "").lower() != UPGRADE or answered.get(CHECKSUMS_HEADER) != CHECKSUMS:
            raise NoBulkLane(f"{self._where} has upgraded to something else", server=self._where)

    def _refusal(self, status: int, headers: dict[str, str]) -> FlightShuffleError:
        if status in _NOT_THE_LANES:
            return NoBulkLane(f"{self._where} answered status {status}", server=self._where)
        return refusal(self._where, status, self._connection.body(headers))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._pid != os.getpid():
            raise ForkedProcess(
                f"the put to dataset {self._dataset!r} was opened by a process that this one was forked from: "
                "open one here"
            )
        if self._ended or self._cancelled:
            raise Closed(f"the put to dataset {self._dataset!r} has ended")
        try:
            yield
        except BaseException as error:
            try:
                # Before ``abandon``: the server can say why it takes nothing only while the put is open.
                translated = self._translate(error)
            finally:
                self.abandon()
            if translated is error:
                raise
            raise translated from error

    def _translate(self, error: BaseException) -> BaseException:
        detail = {"dataset": self._dataset, "server": self._where}
        name = f"the put to dataset {self._dataset!r}"
        if self._cancelled and isinstance(error, OSError | FlightShuffleError):
            return Closed(f"{name} was cancelled")
        if isinstance(error, FlightShuffleError):
            return error
        if isinstance(error, TimeoutError):
            return StreamStalled(
                f"{name} got no further for {self._server.timeouts.stall_seconds:g} s, at {self._where}; the server "
                f"says it waits for: {self._server.why(self._dataset)}",
                **detail,
            )
        if isinstance(error, OSError):
            return BrokenStream(f"{name} broke off: {error} ({self._where})", **detail)
        if isinstance(error, pa.ArrowInvalid | pa.ArrowTypeError | pa.ArrowNotImplementedError):
            return InvalidRequest(f"{name} cannot take the batch: {error}", **detail)
        return error


def _target(location: str) -> str:
    parts = urlsplit(location)
    return parts.path + (f"?{parts.query}" if parts.query else "")
