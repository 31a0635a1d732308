"""Reading on the bulk lane: an HTTP GET whose answer is an Arrow IPC stream.

Guarantee: see ``lane``. A body is whole when Arrow's end marker is followed by the end of the HTTP body: the last
chunk, or the last byte of the announced length. The totals are in the trailers after the last chunk, or in the
response's headers if the server knew them before.

Connections
    A stream waits ``slot_seconds`` for one of the address's ``max_busy`` connections (``http``). Then a stream with
    ``lane="auto"`` takes the gRPC lane, which has no such limit; one with ``lane="bulk"`` opens a connection beyond
    it, because a wait for other streams' consumers has no bound.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

import pyarrow as pa

from flight_server.protocol import (
    ALL,
    FROM_TRAILER,
    PARTITION_HEADER,
    Ticket,
    bulk_path,
)
from spark_client.connection import RemoteServer, TimedOut, Unreachable

from .batch_bursts import BurstReader
from .http import Body, Connection, HttpPool, NoBulkLane, PassedOver, headers_for, refusal
from .lane import BatchBurst, BrokenStream, ReadTotals

ARROW_STREAM = "application/vnd.apache.arrow.stream"


def target_of(location: str, ticket: Ticket) -> str:
    """Path and query of the GET for a ticket; a location's own path is kept."""
    parts = urlsplit(location)
    own = bulk_path(
        ticket.dataset,
        None if ticket.partitions else ticket.partition or 0,
        ticket.generation,
        ticket.from_,
        ticket.until,
        reader=ticket.reader,
        versions=ticket.versions,
        partitions=None if ticket.partitions == ALL else ticket.partitions,
        start=ticket.start,
    )
    if parts.path in ("", "/"):
        return own
    query = dict(parse_qsl(parts.query)) | dict(parse_qsl(urlsplit(own).query))
    return parts.path + (f"?{urlencode(query)}" if query else "")


class BulkReader:
    """A ``LaneReader``.

    ``open`` raises ``NoBulkLane`` when the address does not speak this lane, and its subclass ``PassedOver`` when no
    connection came free and ``beyond`` is False.
    """

    def __init__(
        self, pool: HttpPool, location: str, server: RemoteServer, ticket: Ticket, *, beyond: bool
    ) -> None:
        self.headers: dict[str, str] = {}
        self._pool = pool
        self._beyond = beyond
        self._timeouts = server.timeouts
        self._target = target_of(location, ticket)
        self._ticket = ticket
        self._request_headers = {"Accept": ARROW_STREAM, **headers_for(server)}
        self._where = pool.location
        self._connection: Connection | None = None
        self._body: Body | None = None
        self.totals: ReadTotals | None = None
        self._done = False
        self._cancelled = False

    def open(self) -> pa.Schema:
        self._connection = self._pool.acquire(wait_seconds=self._timeouts.slot_seconds, beyond=self._beyond)
        if self._connection is None:
            raise PassedOver("all connections to it are in use")
        try:
            status, self.headers = self._ask(self._connection)
            self._body = body = self._connection.body(self.headers)
            if status != 200:
                raise refusal(self._where, status, body)
            kind = self.headers.get("content-type", "").partition(";")[0].strip()
            if kind != ARROW_STREAM:
                raise NoBulkLane(f"{self._where} answered {kind!r}, which is not an Arrow stream")
            self._check_place()
            self._bursts = BurstReader(body)
            # A little longer than the merge's deadline: the merge's error names the reason why the server waits.
            self._connection.wait_at_most(self._timeouts.stall_seconds * 1.1)
        except (OSError, pa.ArrowException) as error:
            raise self._failure(Unreachable, "the connection failed", error) from error
        return self._bursts.schema

    def _check_place(self) -> None:
        """Compare the answer's partition and first frame, if sent, with the request, which may be damaged."""
        ticket = self._ticket
        which = [ticket.partition or 0] if ticket.partitions is None else ticket.partitions
        of = f"{ticket.dataset}/{','.join(map(str, which))}"
        expected = {PARTITION_HEADER: of, FROM_TRAILER: str(ticket.from_)}
        for name, value in expected.items():
            if self.headers.get(name, value) != value:
                raise ConnectionResetError(f"asked for {value!r}, it answers {self.headers[name]!r} ({name})")

    def _ask(self, connection: Connection) -> tuple[int, dict[str, str]]:
        if self._cancelled:
            raise ConnectionAbortedError("cancelled")
        try:
            return connection.request(self._target, self._request_headers)
        except TimeoutError:
            raise
        except OSError:
            # A server may close an idle connection at any time: once more on a new one.
            if not connection.reused or self._cancelled:
                raise
        self._connection = new = self._pool.new()
        new.has_slot, connection.has_slot = connection.has_slot, False
        connection.close()
        # Again: a cancel before the assignment has interrupted the old connection.
        if self._cancelled:
            raise ConnectionAbortedError("cancelled")
        return new.request(self._target, self._request_headers)

    def _failure(
        self, kind: type[Unreachable | BrokenStream], what: str, error: Exception
    ) -> Unreachable | BrokenStream | TimedOut:
        # A timeout while connecting is the connection's failure; later the server is silent.
        is_connected = self._body is not None or (
            self._connection is not None and self._connection.sock is not None
        )
        if isinstance(error, TimeoutError) and is_connected:
            return TimedOut(f"{self._where} did not answer in time", server=self._where)
        where = self._pool.named if kind is Unreachable else self._where
        return kind(f"{what}: {error} ({where})", server=self._where)

    def read_burst(self) -> BatchBurst | None:
        if self._done:
            return None
        assert self._body is not None
        try:
            if (burst := self._bursts.read_burst()) is not None:
                return burst
            self._body.finish()
        except (OSError, pa.ArrowException) as error:
            raise self._failure(BrokenStream, "the stream broke off", error) from error
        self.headers = {**self.headers, **self._body.trailers}
        self.totals = ReadTotals.parse(self.headers)
        if self.totals is None:
            raise BrokenStream(
                f"the stream from {self._where} ended without its totals, so it may not be whole",
                server=self._where,
            )
        self._done = True
        return None

    def cancel(self) -> None:
        # Flag first, while ``close`` clears ``_connection`` first: no late cancel hits another stream's connection.
        self._cancelled = True
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            whole = self._done and not self._cancelled
            if not whole:
                connection.interrupt()
            self._pool.release(
                connection, reusable=whole and self.headers.get("connection", "").lower() != "close"
            )
