"""One read, whole or an error, over as many connections as it takes.

Guarantee: the bursts that :meth:`ReadStream.read_burst` returns are those that its cursor hands out (``cursors``,
``version_cursor``), each once, in order, and of one generation. None comes only when the cursor says that all is read.

Checksums
    Each frame's checksum is compared before its batch is returned (``batch_bursts``, ``grpc_get``); a damaged frame
    breaks the connection, and is requested again. Cursors compare their sum with the server's. Neither is done for
    frames of another Flight server.

Resuming
    After a broken connection or a temporary error of the server (``Unavailable``) the stream asks for what is left, at
    the next address, after a random pause. A burst that is handed out resets the count of tries. ``Timeouts`` has the
    numbers. Silence of what a cursor follows is no failure: the stream asks again at once, and the count stays.

    The first answer pins the generation if the ticket names none. If neither names one, a stream is not resumed after
    its first frame. If the generation is gone after that frame, the error says that the data was replaced.

    With ``lane="auto"``, an address of the bulk lane that is unreachable or does not speak it is skipped for
    ``DOWN_SECONDS``. A skip costs no try, because the gRPC lane is always there. The error of the last try says for
    each address how often it was tried, and what that ended with.

Losing the server
    Where the cursor names a start, what cannot be reached any more, or was started again, or has the dataset no
    longer, is a lost server: :class:`ServerLost` names it by its locations and its start, and the dataset. A server
    whose ports refuse connections is lost at once. One that is silent costs a stream its deadlines; later streams of
    the process ask it first, for ``why_seconds``, and raise ServerLost if it is silent still (``start_states``).
    Without a start the errors are those of the connection or the server: a later start may have the data again.

Another server
    A server may give its clients an address that leads to another one, which then has no such dataset. So where an
    address other than the server's own answers that, the server is asked for its start (``connection.misdirected``).

Objects
    The last location may be an object in shared storage that has the same data (``object_get``). The stream goes there
    when all tries to reach the server have failed, for any reason, and goes on where it was. If the server is lost, it
    begins there.

Cancelling
    ``cancel`` takes no lock, and may be called from any thread and from a finalizer. The thread in ``open`` or
    ``read_burst`` then gets ``Closed``: at once while it waits for a frame, at its short deadline while it connects.

Acknowledging
    If the dataset's retention counts its readers, the stream tells the server which frames it has received, where its
    cursor has a reader's name: after their lane's checks, and at its end all. An acknowledgement that fails is no
    error: the server then keeps the frames for longer. A reader of a name that may be tried again from its first frame
    acknowledges at its end only.

Connections
    A follower's HTTP connection is its own, beside the limits of ``http``: it stays open for as long as it follows.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    ACKNOWLEDGE,
    ACKNOWLEDGE_HEADER,
    GENERATION_HEADER,
    REUSE_CONNECTION,
    AcknowledgeRequest,
    Compacted,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    Released,
    ServerLost,
    StaleTicket,
    Ticket,
    Unavailable,
    is_object,
    shown,
)
from spark_client.connection import (
    EmbeddedEnded,
    LaneChoice,
    RemoteServer,
    TimedOut,
    Unreachable,
    misdirected,
    refuses,
)

from .bulk_get import BulkReader
from .cursors import Cursor, PartitionCursor
from .grpc_get import GrpcReader
from .http import HttpPool, NoBulkLane, PassedOver
from .lane import BatchBurst, BrokenStream, Closed, LaneReader, Tries
from .object_get import ObjectReader
from .start_states import STARTS, StartState

EVERY_BYTES = 32 << 20
"""Decoded bytes between two acknowledgements; the server keeps the frames until then."""
DOWN_SECONDS = 30.0
_SLICE_SECONDS = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """A location and the lane that it speaks."""

    lane: Literal["grpc", "bulk", "object"]
    location: str


def addresses(server: RemoteServer, locations: Sequence[str], lane: LaneChoice) -> list[Address]:
    """The addresses to try, each once: those of the bulk lane first, then in the order of ``locations``.

    ``arrow-flight-reuse-connection://?`` means ``server``, which is also added if no location speaks gRPC.

    Raises:
        InvalidRequest: ``lane`` is ``bulk``, and no location has the bulk lane.
    """
    known: list[Address] = []
    for location in locations:
        if location.startswith(REUSE_CONNECTION.rstrip("?")):
            known.append(Address("grpc", server.location))
        elif location.startswith(("http://", "https://")):
            known.append(Address("bulk", location))
        elif location.startswith("grpc"):
            known.append(Address("grpc", location))
    if not any(address.lane == "grpc" for address in known):
        known.append(Address("grpc", server.location))
    known = list(dict.fromkeys(known))
    known.sort(key=lambda address: address.lane != "bulk")
    if lane != "auto":
        known = [address for address in known if address.lane == lane]
    if not known:
        raise InvalidRequest(
            f"the server {server.location} names no http:// location, so it has no bulk lane: use lane='auto'"
        )
    return known


class StreamStalled(Unavailable):
    """No progress before the deadline; the message names the reason why the server waits."""

    code = "stream_stalled"


class ReadStream:
    """One thread reads it; any thread may cancel it.

    Args:
        server: the server that gave the ticket; its credentials are used for every location.
        cursor: what is read; this stream's own.
        locations: URIs of the endpoint.
    """

    def __init__(
        self,
        server: RemoteServer,
        cursor: Cursor,
        *,
        locations: Sequence[str] = (),
        lane: LaneChoice = "auto",
    ) -> None:
        self.name = cursor.name
        self.server = server
        self.cursor = cursor
        self.lane = lane
        self.resumes = 0
        self._addresses = addresses(server, locations, lane)
        kept = bool(locations) and is_object(locations[-1])
        self._object = Address("object", locations[-1]) if kept else None  # None also once it is read
        self._acknowledges = False
        self._unacknowledged_bytes = 0
        self._turn = 0
        self._failures = 0
        self._tries = Tries()
        self._reading: LaneReader | None = None
        self._schema: pa.Schema | None = None
        self._ready: deque[BatchBurst] = deque()
        self._cancelled = False
        self._wait: tuple[float, float] | None = None

    @property
    def address(self) -> Address:
        """The address in use, or the next one to try."""
        return self._addresses[self._turn % len(self._addresses)]

    def open(self) -> pa.Schema:
        """Connect; the schema. Twice is fine. Raises as :meth:`read_burst`."""
        if self._schema is None:
            self._connect(None)
        assert self._schema is not None
        return self._schema

    def read_burst(self) -> BatchBurst | None:
        """Wait for what the cursor hands out next; None at the end of all that is read.

        Raises:
            StaleTicket: the data was replaced.
            ServerLost: see the module.
            BrokenStream: every try failed; :class:`EmbeddedEnded`, if an embedded server does not answer.
            StreamStalled: no schema in time, or the stream was overdue when its connection timed out.
            PartitionFailed: what was read does not agree with the server's totals.
            FlightShuffleError: the server's error, for example that the producer failed.
        """
        if self._schema is None:
            self.open()
        cursor = self.cursor
        while not self._ready:
            if self._cancelled:
                raise self._closed()
            reading = self._reading
            assert reading is not None
            self._wait = (time.monotonic(), self.server.timeouts.stall_seconds)
            try:
                burst = reading.read_burst()
                is_whole = burst is None and cursor.end(reading.totals, reading.headers)
            except Unavailable as error:
                self._resume(error)
                continue
            finally:
                self._wait = None
            if burst is None and not is_whole:
                self._connect(None)
            elif burst is None:
                if self._acknowledges:
                    self._acknowledge()
                return None
            elif bursts := cursor.take(burst):
                self._ready += bursts
                self._failures = 0
                self._tries.clear()
                if self._acknowledges and not cursor.may_repeat:
                    # Not nbytes, at which Arrow 26 crashes for a union without rows.
                    self._unacknowledged_bytes += burst.shared_bytes or sum(
                        [batch.get_total_buffer_size() for batch in burst.batches]
                    )
                    if self._unacknowledged_bytes >= EVERY_BYTES:
                        self._acknowledge()
        return self._ready.popleft()

    def next_nowait(self) -> BatchBurst | None:
        """The next burst, if it has been received already."""
        return self._ready.popleft() if self._ready else None

    def overdue(self, now_seconds: float) -> bool:
        """Whether the reading thread has waited past its deadline; the merge asks from its consumer's thread."""
        wait = self._wait
        if wait is None or (self.cursor.follows and self._schema is not None):
            return False
        since_seconds, limit_seconds = wait
        # A reading thread ends its wait for the server a little later, and goes on at the object.
        return now_seconds - since_seconds > limit_seconds * (1 if self._object is None else 1.5)

    def stalled(self) -> StreamStalled:
        """The error for an overdue stream. Asks the server why, for at most ``why_seconds``."""
        wait = self._wait
        seconds = 0.0 if wait is None else time.monotonic() - wait[0]
        return self._silence(
            f"gave nothing for {seconds:.0f} s after {self.cursor.next_frame} frames, at {self.address.location}",
            waited_seconds=round(seconds, 1),
        )

    def cancel(self) -> None:
        """End the stream. Twice is fine."""
        self._cancelled = True
        reading = self._reading
        if reading is not None:
            reading.cancel()

    def close(self) -> None:
        """Release the connection. Only in the reading thread, or after it has ended; twice is fine."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    def _acknowledge(self) -> None:
        """Say that all frames before the cursor's next one were received."""
        self._unacknowledged_bytes = 0
        cursor = self.cursor
        if cursor.reader is not None and cursor.generation is not None:
            request = AcknowledgeRequest(
                cursor.dataset, cursor.generation, cursor.partition or 0, cursor.reader, cursor.next_frame
            )
            with contextlib.suppress(FlightShuffleError):
                self.server.action(ACKNOWLEDGE, request.encode(), once=True)

    # Connections.

    def _resume(self, failure: Unavailable) -> None:
        """Connect again after a failure of the connection that was read."""
        is_silence = isinstance(failure, TimedOut)
        if is_silence and self.overdue(time.monotonic()):
            raise self.stalled() from failure
        self._wait = None
        location = self.address.location
        self._turn += 1
        if is_silence and self.cursor.follows:
            self._connect(None)
        else:
            self._tries.failed(location, failure)
            self._connect(failure)
        self.resumes += 1

    def _connect(self, failure: Unavailable | None) -> None:
        """Open a lane reader for what is left, at the object if the server does not give it; ``failure`` is the error
        that ended the last one.
        """
        try:
            if self._object is not None:
                if STARTS.of(self.cursor.start) is not StartState.LOST:
                    try:
                        self._connect_in_turn(failure)
                    except (NotFound, Unavailable) as gone:
                        where = shown(self._object.location)
                        _log.warning("%s is read from %s: %s", self.name, where, gone.message)
                    else:
                        return
                self._addresses, self._object = [self._object], None
                self._turn = self._failures = 0
                failure = None
            self._connect_in_turn(failure)
        finally:
            del failure  # whose traceback refers to this frame

    def _connect_in_turn(self, failure: Unavailable | None) -> None:
        try:
            self._ask_if_silent()
            while True:
                self.close()
                # A cancel breaks the connection: that is no failure.
                if failure is not None and not self._cancelled:
                    self._pause_after(failure)
                if self._cancelled:
                    raise self._closed()
                try:
                    self._begin(self.address)
                except StreamStalled:
                    raise
                except PassedOver as error:
                    self._tries.passed_over(self.address.location, error.message)
                    failure = None
                except Unavailable as error:
                    self._tries.failed(self.address.location, error)
                    # Where there is another lane to take, this costs no try.
                    failure = None if isinstance(error, NoBulkLane) and self.lane == "auto" else error
                except NotFound as error:
                    if (wrong := self._misdirected(error)) is not None:
                        raise wrong from error
                    if (gone := self._gone(error)) is not None:
                        raise gone from error
                    raise
                else:
                    return
                self._turn += 1
        finally:
            del failure

    def _ask_if_silent(self) -> None:
        """Raise ServerLost if the server was silent and still is."""
        start = self.cursor.start
        if STARTS.of(start) is not StartState.SILENT:
            return
        failure: Unavailable | None = None
        for address in self._addresses:
            if address.lane == "grpc":
                server, seconds = self._server(address), self.server.timeouts.why_seconds
                try:
                    server.action("locations", timeout_seconds=seconds, once=True)
                except Unavailable as error:
                    failure = error
                else:
                    STARTS.notice(start, StartState.ANSWERING)
                    return
        if failure is not None:
            raise self._lost(failure)

    def _pause_after(self, failure: Unavailable) -> None:
        cursor, timeouts = self.cursor, self.server.timeouts
        if (cut := cursor.cut(failure)) is not None:
            raise cut from failure
        if cursor.start is not None and not self.server.embedded and refuses(self._locations):
            STARTS.notice(cursor.start, StartState.LOST)
            raise self._lost(failure)
        self._failures += 1
        # Without a generation a resumed read could get other data; an embedded server does not come back.
        unpinned = cursor.generation is None and cursor.begun
        if self._failures > timeouts.tries or unpinned or isinstance(failure, EmbeddedEnded):
            raise self._given_up(failure) from failure
        until = time.monotonic() + timeouts.pause_seconds(self._failures)
        while (left := until - time.monotonic()) > 0 and not self._cancelled:
            time.sleep(min(left, _SLICE_SECONDS))

    def _begin(self, address: Address) -> None:
        cursor = self.cursor
        self._reading = reading = self._reader_at(address, cursor.ticket())
        try:
            # ``cancel`` sets the flag, then reads ``_reading``; here the reverse, so that no cancel is lost.
            if self._cancelled:
                raise self._closed()
            schema = self._open(reading, address)
            generation = reading.headers.get(GENERATION_HEADER)
            is_other = generation is not None and cursor.generation not in (None, generation)
            if is_other or (self._schema is not None and not schema.equals(self._schema)):
                raise self._replaced(f"what the server has now is generation {generation}")
        except BaseException:
            self.close()
            raise
        cursor.generation = cursor.generation or generation
        self._schema = schema
        self._acknowledges = cursor.reader is not None and ACKNOWLEDGE_HEADER in reading.headers

    def _open(self, reading: LaneReader, address: Address) -> pa.Schema:
        timeouts = self.server.timeouts
        self._wait = (time.monotonic(), timeouts.connect_seconds + timeouts.first_message_seconds)
        try:
            return reading.open()
        except TimedOut as error:
            seconds, place = timeouts.first_message_seconds, address.location
            raise self._silence(f"did not begin within {seconds:g} s at {place}: no schema came") from error
        except (NoBulkLane, Unreachable) as error:
            if address.lane == "grpc" or self.lane == "bulk" or isinstance(error, PassedOver):
                raise
            if not self._cancelled:
                self._pool(address).leave_alone(DOWN_SECONDS, error)
            raise NoBulkLane(error.message) from error
        finally:
            self._wait = None

    def _reader_at(self, address: Address, ticket: Ticket) -> LaneReader:
        if address.lane == "object":
            return ObjectReader(address.location, ticket)
        if address.lane == "grpc":
            return GrpcReader(self._server(address), ticket)
        pool = self._pool(address)
        choice = self.lane == "auto"
        if choice and (why := pool.left_alone) is not None:
            raise PassedOver(why)
        return BulkReader(pool, address.location, self.server, ticket, beyond=not choice)

    def _server(self, address: Address) -> RemoteServer:
        if address.location == self.server.location:
            return self.server
        server = self.server.at(address.location)  # not inside the call, which holds a lock that this takes
        # Attached, because an unreferenced server would close its connections.
        return self.server.attached(("server", address.location), lambda: server)

    def _pool(self, address: Address) -> HttpPool:
        server, parts = self.server, urlsplit(address.location)
        key = ("followed" if self.cursor.follows else "bulk", parts.scheme, parts.netloc)
        if self.cursor.follows:
            return server.attached(key, lambda: HttpPool(address.location, server, max_busy=None, max_idle=0))
        return server.attached(key, lambda: HttpPool(address.location, server))

    @property
    def _locations(self) -> list[str]:
        return [*dict.fromkeys(address.location for address in self._addresses)]

    # The errors.

    def _closed(self) -> Closed:
        return Closed(f"reading {self.name} was cancelled")

    def _silence(self, how: str, **detail: float) -> StreamStalled:
        """``how`` the stream was silent. Asks the server why."""
        cursor = self.cursor
        STARTS.notice(cursor.start, StartState.SILENT)
        return StreamStalled(
            f"{self.name} {how}; the server says it waits for: {self.server.why(cursor.dataset)}",
            dataset=cursor.dataset,
            partition=cursor.partition,
            server=self.address.location,
            **detail,
        )

    def _given_up(self, last: Unavailable) -> FlightShuffleError:
        cursor = self.cursor
        if isinstance(last, Unreachable | NoBulkLane):
            if self.server.embedded:
                return EmbeddedEnded.of(self.name, last)
            if cursor.start is not None:
                STARTS.notice(cursor.start, StartState.SILENT)
                return self._lost(last)
        return BrokenStream(
            f"{self.name} could not be read beyond {cursor.position}, after {self._tries}",
            dataset=cursor.dataset,
            partition=cursor.partition,
            frames=cursor.next_frame,
        )

    def _gone(self, error: NotFound) -> FlightShuffleError | None:
        """What it means that the server has no such dataset, generation, frames or start; None: ``error`` says it."""
        if self.cursor.begun and not isinstance(error, Compacted | Released | ServerLost):
            return self._replaced(error.message)
        # A server that answers, and has the dataset no more, is not lost.
        if isinstance(error, ServerLost):  # another start has answered
            STARTS.notice(self.cursor.start, StartState.LOST)
        elif self.address.lane != "object":
            return None
        return None if self.cursor.start is None else self._lost(error)

    def _misdirected(self, error: NotFound) -> FlightShuffleError | None:
        """What it means that another server has answered at an address that the one with the data gives."""
        if self._object is not None:
            return None
        own = self.server
        if self.cursor.start is not None:
            reached = (each for each in self._addresses if each.lane == "grpc")
            own = next(map(self._server, reached), own)
        return misdirected(own, self.address.location, error.detail.get("server_start"))

    def _replaced(self, why: str) -> StaleTicket:
        cursor = self.cursor
        return StaleTicket(
            f"{self.name} went away after {cursor.next_frame} of its frames were read: generation {cursor.generation} "
            f"is gone, and the rest of it with it ({why}); read the dataset again from its start",
            dataset=cursor.dataset,
            partition=cursor.partition,
            generation=cursor.generation,
            frames=cursor.next_frame,
        )

    def _lost(self, last: FlightShuffleError) -> ServerLost:
        cursor, where = self.cursor, ", ".join(self._locations)
        tried = bool(self._tries) and not isinstance(last, NotFound)
        how = f", after {self._tries}" if tried else f": {last.message}"
        error = ServerLost(
            f"dataset {cursor.dataset!r} has lost the server with the start {cursor.start} at {where}, at "
            f"{cursor.position}{how}",
            dataset=cursor.dataset,
            start=cursor.start,
            server=where,
        )
        error.__cause__ = last
        return error


def partition_streams(
    server: RemoteServer,
    endpoints: Iterable[flight.FlightEndpoint],
    *,
    lane: LaneChoice = "auto",
) -> list[ReadStream]:
    """One stream for each endpoint of a FlightInfo, in its order."""
    return [
        ReadStream(
            server,
            PartitionCursor(Ticket.parse(endpoint.ticket.ticket)),
            locations=[location.uri.decode() for location in endpoint.locations],
            lane=lane,
        )
        for endpoint in endpoints
    ]
