"""Writing on the bulk lane: one HTTP connection for each put, upgraded, beyond the limits of ``http``.

Guarantee: see ``lane``. Errors are the server's own if it has sent one.

Before the upgrade
    Nothing of the put is sent before the server has agreed to the upgrade, so that it can take another address if
    this one does not speak the lane. A refusal of the server itself (token, drain) is raised.

Sending
    While the server takes nothing, ``write`` waits at most ``stall_seconds``; its error names the reason why the server
    waits.

Ending
    ``abandon`` shuts the connection down and resets it (``Connection.interrupt``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    CHECKSUMS,
    CHECKSUMS_HEADER,
    UPGRADE,
    Commit,
    FlightShuffleError,
    Forbidden,
    InvalidRequest,
    PutCommand,
    Unauthenticated,
    from_json,
)
from flight_server.tracing import traceparent
from spark_client.connection import Compression, ForkedProcess, RemoteServer, TimedOut, Unreachable

from .compression import BufferCompressor, most_to
from .duplex import Duplex
from .http import Body, HttpPool, NoBulkLane
from .lane import BrokenStream, Closed
from .messages import MessageWriter
from .partition_stream import StreamStalled

HOLD_BYTES = 64 << 10
_NOT_THE_LANES = frozenset({400, 404, 405, 426, 501})
"""The statuses of an older server, or of a proxy that does not pass the upgrade; their bodies are not read."""


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
        self._where = pool.location
        self._pid = os.getpid()
        self._ended = False
        self._cancelled = False
        self._messages = MessageWriter(schema, None if compression == "auto" else compression)
        self._connection = pool.new()
        try:
            checked = self._upgrade(location)
            if compression == "auto":
                self._messages.compressor = self._compressor()
            with self._errors():
                self._duplex = Duplex(self._connection, server.timeouts.stall_seconds)
                descriptor = flight.FlightDescriptor.for_command(command.encode()).serialize()
                self._duplex.send(self._messages.opening(descriptor, checked=checked))
        except BaseException:
            self.abandon()
            raise

    def write(self, batch: Any, metadata: bytes, *, hold: bool) -> None:
        with self._errors():
            self._messages.add(batch, metadata)
            if hold and self._messages.waiting_bytes < HOLD_BYTES:
                self._messages.keep()
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

    def _compressor(self) -> BufferCompressor:
        sock = self._connection.sock
        assert sock is not None
        return BufferCompressor(most_to(sock.getpeername()[0], sock.getsockname()[0]))

    def _upgrade(self, location: str) -> bool:
        """Upgrade the connection; whether both sides want checksums."""
        headers = {"Connection": "Upgrade", "Upgrade": UPGRADE, "Content-Length": "0"}
        if self._server.writing.check:
            headers[CHECKSUMS_HEADER] = CHECKSUMS
        if (parent := traceparent()) is not None:
            headers["traceparent"] = parent
        if (token := self._server.token) is not None:
            headers["Authorization"] = f"Bearer {token}"
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
                f"the connection failed: {error} (dataset {self._dataset!r} at {self._where})",
                server=self._where,
                dataset=self._dataset,
            ) from error
        if answered.get("upgrade", "").lower() != UPGRADE:
            raise NoBulkLane(f"{self._where} has upgraded to something else", server=self._where)
        return answered.get(CHECKSUMS_HEADER) == CHECKSUMS

    def _refusal(self, status: int, headers: dict[str, str]) -> FlightShuffleError:
        said = f"{self._where} answered status {status}"
        if status not in _NOT_THE_LANES:
            assert self._connection.file is not None
            try:
                return from_json(Body(self._connection.file, headers).read())
            except ValueError:
                pass
            kinds: dict[int, type[FlightShuffleError]] = {401: Unauthenticated, 403: Forbidden}
            if status in kinds:
                return kinds[status](said, server=self._where)
        return NoBulkLane(said, server=self._where)

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
