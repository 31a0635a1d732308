"""The bulk lane: an HTTP GET that answers an Arrow IPC stream, at about the speed of the socket.

Guarantee: as every lane's. In particular a peer that closes early, cuts a frame in two, or sends a
stream with an end marker but without the end of its HTTP body, is an error: the body is read here and
not by ``http.client``, which gives a short read without a word.

The end
    A body is whole when the Arrow end marker was followed by the end of the HTTP body: the last chunk,
    or the last byte of the announced length. The totals come in the trailers after the last chunk, or
    in the response's headers when the server knew them before.

Copies
    Arrow's decoder asks for the next message's body by its length; it is received straight into a
    buffer of that size, aligned as Arrow wants it. Headers and small messages come through the
    socket's own read buffer.

Connections
    HTTP/1.1 carries one stream for each connection, and the number of connections to one address is
    limited. With ``lane="auto"`` a stream that finds none free takes the gRPC lane, which has no such
    limit; with ``lane="bulk"`` it waits ``slot_seconds`` and then opens one more, because a stream that
    waits for another one's consumer could wait for ever.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

import pyarrow as pa

from flight_server.errors import FlightShuffleError, Forbidden, Unauthenticated, from_json
from flight_server.protocol import Ticket, bulk_path
from spark_client.lanes import BrokenStream, Totals
from spark_client.lanes.http import Body, Connection, HttpPool, NoBulkLane, NoFreeConnection
from spark_client.transport import Server, Unreachable

ARROW_STREAM = "application/vnd.apache.arrow.stream"


def target_of(location: str, ticket: Ticket) -> str:
    """Path and query of the GET for a ticket. A location with a path of its own keeps it."""
    parts = urlsplit(location)
    if parts.path in ("", "/"):
        return bulk_path(ticket.dataset, ticket.partition or 0, ticket.generation, ticket.from_)
    query = dict(parse_qsl(parts.query))
    if ticket.generation is not None:
        query["generation"] = ticket.generation
    if ticket.from_:
        query["from"] = str(ticket.from_)
    return parts.path + (f"?{urlencode(query)}" if query else "")


class BulkReading:
    """See :class:`~spark_client.lanes.Reading`. The constructor blocks until the schema has come.

    Raises:
        NoBulkLane: the address does not speak this lane, or has no free slot (``beyond`` is False).
        Unreachable: the connection could not be made, or broke.
    """

    def __init__(
        self, pool: HttpPool, location: str, server: Server, ticket: Ticket, *, beyond: bool
    ) -> None:
        self._pool = pool
        self._totals: Totals | None = None
        self._done = False
        self._cancelled = False
        self._where = pool.location
        target = target_of(location, ticket)
        headers = {"Accept": ARROW_STREAM}
        if server.token is not None:
            headers["Authorization"] = f"Bearer {server.token}"
        connection = pool.acquire(wait_seconds=server.timeouts.slot_seconds, beyond=beyond)
        if connection is None:
            raise NoFreeConnection(f"{pool.location} has no free connection")
        self._connection: Connection | None = connection
        try:
            status, self.headers = self._ask(target, headers)
            assert self._connection.file is not None
            self._body = Body(self._connection.file, self.headers)
            if status != 200:
                raise self._refusal(status)
            if self.headers.get("content-type", "").partition(";")[0].strip() != ARROW_STREAM:
                raise NoBulkLane(
                    f"{pool.location} answered {self.headers.get('content-type')!r}, not an Arrow stream"
                )
            self._reader = pa.ipc.open_stream(pa.PythonFile(self._body, mode="r"))
            self.schema: pa.Schema = self._reader.schema
        except (OSError, pa.ArrowException) as error:
            self.close()
            raise Unreachable(
                f"the connection failed: {error} ({pool.location})", server=pool.location
            ) from error
        except BaseException:
            self.close()
            raise

    def _ask(self, target: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        connection = self._connection
        assert connection is not None
        try:
            return connection.request(target, headers)
        except OSError:
            # A server may close an idle connection at any time, also just now.
            if not connection.reused or self._cancelled:
                raise
        old, new = connection, self._pool.new()
        new.has_slot, old.has_slot = old.has_slot, False
        self._connection = new
        old.close()
        return new.request(target, headers)

    def _refusal(self, status: int) -> FlightShuffleError:
        """The server's error: its JSON, or by status from whatever else stands there."""
        body = self._body.read()
        try:
            return from_json(body)
        except ValueError:
            pass
        sentence = f"{self._where} answered status {status}"
        kinds: dict[int, type[FlightShuffleError]] = {401: Unauthenticated, 403: Forbidden}
        if status in kinds:
            return kinds[status](sentence, server=self._where)
        # Without our JSON it is not our server: a proxy, or an older one.
        return NoBulkLane(sentence, server=self._where)

    @property
    def totals(self) -> Totals | None:
        return self._totals

    def read(self) -> pa.RecordBatch | None:
        if self._done:
            return None
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            pass
        except (OSError, pa.ArrowException) as error:
            raise BrokenStream(
                f"the stream from {self._where} broke off: {error}", server=self._where
            ) from error
        try:
            self._body.finish()
        except OSError as error:
            raise BrokenStream(
                f"the stream from {self._where} broke off: {error}", server=self._where
            ) from error
        self.headers = {**self.headers, **self._body.trailers}
        self._totals = Totals.parse(self.headers)
        if self._totals is None:
            raise BrokenStream(
                f"the stream from {self._where} ended without its totals, so it may not be whole",
                server=self._where,
            )
        self._done = True
        return None

    def cancel(self) -> None:
        # This order, and the other one in close, keep a late cancel from a connection of somebody else.
        self._cancelled = True
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            whole = self._done and not self._cancelled
            self._pool.release(
                connection, reusable=whole and self.headers.get("connection", "").lower() != "close"
            )
