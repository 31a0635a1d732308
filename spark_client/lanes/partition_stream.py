"""One partition, read whole or an error, over as many connections as it takes.

Guarantee: the batches that :meth:`PartitionStream.read_burst` returns are the frames that the ticket asks for, each
once, in order, and of one generation. None comes only when they agree with the server's totals.

Checksums
    Each frame's checksum is compared before its batch is returned (``batch_bursts``, ``grpc_get``); a damaged frame
    breaks the stream, and is requested again. At the end their sum is compared with the server's. Neither is done
    for frames of another Flight server.

Resuming
    After a broken connection or a temporary error of the server (``Unavailable``) the stream tries again from the
    next frame, at the next address, after a random pause. A received frame resets the count of tries. ``Timeouts``
    has the numbers.

    The first answer pins the generation if the ticket names none. If neither names one, a stream is not resumed after
    its first frame. If the generation is gone after that frame, the error says that the data was replaced.

    With ``lane="auto"``, an address of the bulk lane that is unreachable or does not speak it is skipped for
    ``DOWN_SECONDS``. A skip costs no try, because the gRPC lane is always there. The error of the last try says for
    each address how often it was tried, and what that ended with.

Cancelling
    ``cancel`` takes no lock, and may be called from any thread and from a finalizer. The thread in ``open`` or
    ``read_burst`` then gets ``Closed``: at once while it waits for a frame, at its short deadline while it connects.

Acknowledging
    If the dataset's retention counts its readers, the stream tells the server which frames it has received: after their
    lane's checks, and at its end all. An acknowledgement that fails is no error: the server then keeps the frames for
    longer. A stream whose ticket names no reader is a reader of its own. A name in the ticket is that of a task which
    may be tried again from its first frame, and is one reader all the same: it acknowledges at its end only.

Totals
    Every difference that they can show is an error: frames that lack or are too many, other rows, another checksum,
    another range. Of a read to the partition's end the server sends those of the whole partition, so rows and checksum
    are compared if the read began at frame 0, over all connections. Of a read with ``until`` it sends those of the last
    connection's range (``transfer.frame_ranges``), so they are compared for that connection. The frames are counted in
    both.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    ACKNOWLEDGE,
    ACKNOWLEDGE_HEADER,
    FROM_TRAILER,
    REUSE_CONNECTION,
    UNTIL_TRAILER,
    AcknowledgeRequest,
    Compacted,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    PartitionFailed,
    Released,
    ServerLost,
    StaleTicket,
    Ticket,
    Unavailable,
)
from flight_server.protocol.checksums import running_crc32c
from spark_client.connection import EmbeddedEnded, RemoteServer, TimedOut, Unreachable

from .bulk_get import BulkReader
from .grpc_get import GrpcReader
from .http import HttpPool, NoBulkLane, PassedOver
from .lane import BatchBurst, BrokenStream, Closed, LaneChoice, LaneReader, ReadTotals, Tries, generation_of

EVERY_BYTES = 32 << 20
"""Decoded bytes between two acknowledgements; the server keeps the frames until then."""
DOWN_SECONDS = 30.0
_SLICE_SECONDS = 0.05


class ReceivedFrames:
    """The frames from ``start`` to before ``until``; None: to the partition's end."""

    def __init__(self, start: int, until: int | None) -> None:
        self.start = start
        self.until = until
        self.next_frame = start
        self.rows = 0
        self.asked_from = start
        self._rows_before = 0
        self._crc32c = 0 if start == 0 or until is not None else None  # None: not all checksums are known

    @property
    def count(self) -> int:
        return self.next_frame - self.start

    def ask(self) -> None:
        """A new connection begins, which asks for the next frame."""
        self.asked_from = self.next_frame
        if self.until is not None:
            self._rows_before, self._crc32c = self.rows, 0

    def add(self, burst: BatchBurst) -> None:
        self.next_frame += len(burst.batches)
        self.rows += sum([batch.num_rows for batch in burst.batches])
        if len(burst.checksums) != len(burst.batches):
            self._crc32c = None
        elif self._crc32c is not None:
            for checksum in burst.checksums:
                self._crc32c = running_crc32c(self._crc32c, checksum)

    @property
    def is_past(self) -> bool:
        """Whether frames came that were not asked for."""
        return self.until is not None and self.next_frame > self.until

    def is_short(self, totals: ReadTotals) -> bool:
        """Whether frames lack, which another connection may have."""
        return self.next_frame < self._end(totals)

    def fault(self, totals: ReadTotals, headers: Mapping[str, str]) -> str | None:
        """Why the frames, of which none lacks, differ from the request; None if they do not."""
        began, until = headers.get(FROM_TRAILER), headers.get(UNTIL_TRAILER)
        ranged = self.until is not None
        is_wrong = (
            self.next_frame > self._end(totals)
            or (ranged and (self.next_frame != self.until or until != str(self.until)))
            or ((ranged or self.start == 0) and self.rows - self._rows_before != totals.rows)
            or (self._crc32c is not None and totals.crc32c not in (None, self._crc32c))
            or (began is not None and began != str(self.asked_from))
        )
        if not is_wrong:
            return None
        asked = f"frame {self.asked_from}" + (f" to before {self.until}" if ranged else "")
        answered = f"frame {began}" + (f" to before {until}" if ranged else "")
        return (
            f"{self.rows - self._rows_before} rows up to frame {self.next_frame}, last asked from {asked}; the server "
            f"counts {totals.rows} rows in {totals.frames} frames, and says that it gave from {answered}; checksums "
            f"{_hex(self._crc32c)} and {_hex(totals.crc32c)}"
        )

    def _end(self, totals: ReadTotals) -> int:
        return totals.frames if self.until is None else self.asked_from + totals.frames


def _hex(checksum: int | None) -> str:
    return "unknown" if checksum is None else f"{checksum:08x}"


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
        ValueError: an unknown lane.
    """
    if lane not in ("auto", "grpc", "bulk"):
        raise ValueError(f"lane is 'auto', 'grpc' or 'bulk', not {lane!r}")
    found: list[Address] = []
    for location in locations:
        if location.startswith(REUSE_CONNECTION.rstrip("?")):
            found.append(Address("grpc", server.location))
        elif location.startswith(("http://", "https://")):
            found.append(Address("bulk", location))
        elif location.startswith("grpc"):
            found.append(Address("grpc", location))
    if not any(address.lane == "grpc" for address in found):
        found.append(Address("grpc", server.location))
    found = list(dict.fromkeys(found))
    found.sort(key=lambda address: address.lane != "bulk")
    if lane != "auto":
        found = [address for address in found if address.lane == lane]
    if not found:
        raise InvalidRequest(
            f"the server {server.location} names no http:// location, so it has no bulk lane: use lane='auto'"
        )
    return found


class Acknowledging:
    """The acknowledgements of one stream."""

    def __init__(
        self, server: RemoteServer, dataset: str, partition: int | None, reader: str | None = None
    ) -> None:
        self.reader = reader or uuid.uuid4().hex
        self._only_at_end = reader is not None
        self._server = server
        self._dataset = dataset
        self._partition = partition or 0
        self._generation: str | None = None
        self._bytes = 0

    def opened(self, headers: Mapping[str, str], generation: str | None) -> None:
        """Send acknowledgements only if the new connection's headers ask for them."""
        self._generation = generation if ACKNOWLEDGE_HEADER in headers else None

    def received(self, burst: BatchBurst, frames: int) -> None:
        """Count a burst, after which ``frames`` frames have been received. Acknowledges every ``EVERY_BYTES``."""
        if self._generation is not None:
            # Not nbytes, at which Arrow 26 crashes for a union without rows.
            self._bytes += burst.shared_bytes or sum(
                [batch.get_total_buffer_size() for batch in burst.batches]
            )
            if self._bytes >= EVERY_BYTES and not self._only_at_end:
                self.all_received(frames)

    def all_received(self, frames: int) -> None:
        self._bytes = 0
        if self._generation is not None:
            request = AcknowledgeRequest(
                self._dataset, self._generation, self._partition, self.reader, frames
            )
            with contextlib.suppress(FlightShuffleError):
                self._server.action(ACKNOWLEDGE, request.encode(), once=True)


class StreamStalled(Unavailable):
    """No progress before the deadline; the message names the reason why the server waits."""

    code = "stream_stalled"


class PartitionStream:
    """One thread reads it; any thread may cancel it.

    Args:
        server: the server that gave the ticket; its credentials are used for every location.
        ticket: ``from_`` is the first frame wanted, ``until`` the one after the last.
        locations: URIs of the endpoint.
    """

    def __init__(
        self,
        server: RemoteServer,
        ticket: Ticket,
        *,
        locations: Sequence[str] = (),
        lane: LaneChoice = "auto",
    ) -> None:
        self.server = server
        self.dataset = ticket.dataset
        self.partition = ticket.partition
        self.generation = ticket.generation
        self.resumes = 0
        self._received = ReceivedFrames(ticket.from_, ticket.until)
        self.lane = lane
        self._addresses = addresses(server, locations, lane)
        self._acknowledging = Acknowledging(server, ticket.dataset, ticket.partition, ticket.reader)
        self._turn = 0
        self._failures = 0
        self._tries = Tries()
        self._reading: LaneReader | None = None
        self._schema: pa.Schema | None = None
        self._cancelled = False
        self._wait: tuple[float, float] | None = None

    @property
    def next_frame(self) -> int:
        """The number of the frame to come."""
        return self._received.next_frame

    @property
    def rows(self) -> int:
        return self._received.rows

    @property
    def name(self) -> str:
        which = "the dataset" if self.partition is None else f"partition {self.partition} of dataset"
        return f"{which} {self.dataset!r}"

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
        """Wait for the next frame; its batch and those received with it. None at the end of the whole partition.

        Raises:
            StaleTicket: the data was replaced.
            BrokenStream: every try failed; :class:`EmbeddedEnded`, if an embedded server does not answer.
            StreamStalled: no schema in time, or the stream was overdue when its connection timed out.
            PartitionFailed: the frames read do not agree with the server's totals.
            FlightShuffleError: the server's error, for example that the producer failed.
        """
        self.open()
        while True:
            if self._cancelled:
                raise self._closed()
            reading = self._reading
            assert reading is not None
            self._wait = (time.monotonic(), self.server.timeouts.stall_seconds)
            try:
                burst = reading.read_burst()
                if burst is None:
                    self._check(reading)
            except Unavailable as error:
                if isinstance(error, TimedOut) and self.overdue(time.monotonic()):
                    raise self.stalled() from error
                self._wait = None
                self._tries.failed(self.address.location, error)
                self._turn += 1
                self._connect(error)
                self.resumes += 1
                continue
            finally:
                self._wait = None
            if burst is not None:
                self._took(burst)
                self._progressed()
                self._acknowledging.received(burst, self.next_frame)
            else:
                self._acknowledging.all_received(self.next_frame)
            return burst

    def overdue(self, now_seconds: float) -> bool:
        """Whether the reading thread has waited past its deadline; the merge asks from its consumer's thread."""
        wait = self._wait
        return wait is not None and now_seconds - wait[0] > wait[1]

    def stalled(self) -> StreamStalled:
        """The error for an overdue stream. Asks the server why, for at most ``why_seconds``."""
        wait = self._wait
        seconds = 0.0 if wait is None else time.monotonic() - wait[0]
        return StreamStalled(
            f"{self.name} gave nothing for {seconds:.0f} s after {self.next_frame} frames, at "
            f"{self.address.location}; the server says it waits for: {self.server.why(self.dataset)}",
            dataset=self.dataset,
            partition=self.partition,
            server=self.address.location,
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

    # Inside.

    def _progressed(self) -> None:
        """What failed before does not count any more."""
        self._failures = 0
        self._tries.clear()

    def _took(self, burst: BatchBurst) -> None:
        self._received.add(burst)
        if self._received.is_past:
            raise self._untrusted(f"frames past the last wanted one, {self._received.until}")

    def _check(self, reading: LaneReader) -> None:
        totals, received = reading.totals, self._received
        assert totals is not None
        if received.is_short(totals):
            raise BrokenStream(
                f"{self.name} ended after {self.next_frame} frames; the server counts {totals.frames}"
            )
        fault = received.fault(totals, reading.headers)
        if fault is not None:
            raise self._untrusted(fault)

    def _connect(self, failure: Unavailable | None) -> None:
        """Open a lane reader at the next frame; ``failure`` is the error that ended the last one."""
        try:
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
                    if isinstance(error, Compacted | Released | ServerLost) or not self._received.count:
                        raise
                    raise self._replaced(error.message) from error
                else:
                    return
                self._turn += 1
        finally:
            del failure  # whose traceback refers to this frame

    def _begin(self, address: Address) -> None:
        self._received.ask()
        self._reading = reading = self._reading_at(address, self._ticket())
        try:
            # ``cancel`` sets the flag, then reads ``_reading``; here the reverse, so that no cancel is lost.
            if self._cancelled:
                raise self._closed()
            schema = self._open(reading, address)
            generation = generation_of(reading)
            is_other = generation is not None and self.generation not in (None, generation)
            if is_other or (self._schema is not None and not schema.equals(self._schema)):
                raise self._replaced(f"what the server has now is generation {generation}")
        except BaseException:
            self.close()
            raise
        self.generation = self.generation or generation
        self._schema = schema
        self._acknowledging.opened(reading.headers, generation)

    def _ticket(self) -> Ticket:
        reader = self._acknowledging.reader
        received = self._received
        return Ticket(
            self.dataset, self.partition, self.generation, received.asked_from, reader, until=received.until
        )

    def _open(self, reading: LaneReader, address: Address) -> pa.Schema:
        timeouts = self.server.timeouts
        self._wait = (time.monotonic(), timeouts.connect_seconds + timeouts.first_message_seconds)
        try:
            return reading.open()
        except TimedOut as error:
            raise self._late() from error
        except (NoBulkLane, Unreachable) as error:
            if address.lane == "grpc" or self.lane == "bulk":
                raise
            if isinstance(error, PassedOver):
                raise
            if not self._cancelled:
                self._pool(address).leave_alone(DOWN_SECONDS, error)
            raise NoBulkLane(error.message) from error
        finally:
            self._wait = None

    def _reading_at(self, address: Address, ticket: Ticket) -> LaneReader:
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
        found = self.server.at(address.location)  # not inside the call, which holds a lock that this takes
        # Attached, because an unreferenced server would close its connections.
        return self.server.attached(("server", address.location), lambda: found)

    def _pool(self, address: Address) -> HttpPool:
        parts = urlsplit(address.location)
        key = ("bulk", parts.scheme, parts.netloc)
        return self.server.attached(key, lambda: HttpPool(address.location, self.server))

    def _pause_after(self, failure: Unavailable) -> None:
        timeouts = self.server.timeouts
        self._failures += 1
        # Without a generation a resumed read could get other data; an embedded server does not come back.
        unpinned = self.generation is None and self._received.count
        if self._failures > timeouts.tries or unpinned or isinstance(failure, EmbeddedEnded):
            raise self._give_up(failure)
        until = time.monotonic() + timeouts.pause_seconds(self._failures)
        while (left := until - time.monotonic()) > 0 and not self._cancelled:
            time.sleep(min(left, _SLICE_SECONDS))

    # The errors.

    @property
    def _position(self) -> str:
        return f"frame {self.next_frame}"

    def _untrusted(self, fault: str) -> PartitionFailed:
        return PartitionFailed(
            f"{self.name} gave {fault}: what was read cannot be trusted",
            dataset=self.dataset,
            partition=self.partition,
        )

    def _closed(self) -> Closed:
        return Closed(f"reading {self.name} was cancelled")

    def _give_up(self, last: Unavailable) -> FlightShuffleError:
        error: Unavailable
        if self.server.embedded and isinstance(last, Unreachable | NoBulkLane):
            error = EmbeddedEnded.of(self.name, last)
            error.__cause__ = last
            return error
        error = BrokenStream(
            f"{self.name} could not be read beyond {self._position}, after {self._tries}",
            dataset=self.dataset,
            partition=self.partition,
            frames=self.next_frame,
        )
        error.__cause__ = last
        return error

    def _late(self) -> StreamStalled:
        return StreamStalled(
            f"{self.name} did not begin within {self.server.timeouts.first_message_seconds:g} s at "
            f"{self.address.location}: no schema came; the server says it waits for: "
            f"{self.server.why(self.dataset)}",
            dataset=self.dataset,
            partition=self.partition,
            server=self.address.location,
        )

    def _replaced(self, why: str) -> StaleTicket:
        return StaleTicket(
            f"{self.name} went away after {self.next_frame} of its frames were read: generation {self.generation} is "
            f"gone, and the rest of it with it ({why}); read the dataset again from its start",
            dataset=self.dataset,
            partition=self.partition,
            generation=self.generation,
            frames=self.next_frame,
        )


def partition_streams(
    server: RemoteServer,
    endpoints: Iterable[flight.FlightEndpoint],
    *,
    lane: LaneChoice = "auto",
) -> list[PartitionStream]:
    """One stream for each endpoint of a FlightInfo, in its order."""
    return [
        PartitionStream(
            server,
            Ticket.parse(endpoint.ticket.ticket),
            locations=[location.uri.decode() for location in endpoint.locations],
            lane=lane,
        )
        for endpoint in endpoints
    ]
