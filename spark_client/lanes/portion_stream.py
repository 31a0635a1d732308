"""Several partitions of what one server holds of a dataset, read in one stream.

Guarantee: as ``partition_stream``, for each partition: its batches come only in bursts of their own, whose ``part`` is
the partition's, and the next partition's only after the totals that the server sends at the end of each
(``flight_server.transfer.listed_reads``) agree with what was received. After a broken connection the stream goes on
at the partition and frame where it was, at the next location.

Losing the server
    Of a dataset over several servers, what cannot be reached any more, or was started again, or has the dataset no
    longer, is a lost server: :class:`ServerLost` names it by its locations and its start, and the dataset. A start does
    not come back: so a server whose ports refuse connections is lost at once (``connection.refuses``). One that is
    silent costs a stream its deadlines; later streams of the process ask it first, for ``why_seconds``, and raise
    ServerLost if it is silent still. The errors of a dataset that one server has are a :class:`PartitionStream`'s.

Objects
    A portion may be kept as an object in shared storage, too. Its stream goes there when all tries to reach the server
    have failed, for any reason, and goes on at the partition and frame where it was. If the server is gone, later
    streams of the process begin there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flight_server.protocol import (
    PARTITION_ENDED,
    FlightShuffleError,
    NotFound,
    PartitionEnd,
    ServerLost,
    StaleTicket,
    Ticket,
    Unavailable,
    is_object,
    shown,
)
from spark_client.connection import RemoteServer, Unreachable, refuses

from .http import NoBulkLane
from .lane import BatchBurst, BrokenStream, LaneChoice, LaneReader, ReadTotals
from .object_get import ObjectReader
from .partition_stream import Address, PartitionStream, ReceivedFrames, StreamStalled

_SHOWN = 5
_AT_ONCE = 1000
"""Partitions in one request: a URL of the bulk lane may have 8 KB."""

_silent: set[str] = set()
"""The starts at which a stream of this process has met its deadlines, and which have not answered since."""
_log = logging.getLogger(__name__)


class PortionStream(PartitionStream):
    """A :class:`PartitionStream` of several partitions.

    Args:
        parts: the partitions, in the order in which they are read, and the ``part`` of each one's bursts.
        start: that of the server that holds them; None if any will do.
        locations: where it is, without the paths of partitions.
        frames: of the only partition, those from the first to before the second number, None for its end; None for all.
    """

    def __init__(
        self,
        server: RemoteServer,
        dataset: str,
        parts: Mapping[int, int],
        *,
        generation: str | None,
        start: str | None,
        locations: Sequence[str],
        lane: LaneChoice = "auto",
        frames: tuple[int, int | None] | None = None,
    ) -> None:
        ticket = Ticket(dataset, generation=generation)
        if frames is not None:
            (partition,) = parts
            ticket = replace(ticket, partition=partition, from_=frames[0], until=frames[1])
        super().__init__(server, ticket, locations=locations, lane=lane)
        self.start = start
        self._is_slice = frames is not None
        self._partitions = tuple(parts)
        self._parts = tuple(parts.values())
        self._at = 0
        self._until = 0  # of those that the connection was asked for
        self._ended = False
        self._bursts: deque[BatchBurst] = deque()

    @property
    def name(self) -> str:
        shown = ", ".join(map(str, self._partitions[:_SHOWN]))
        more = "" if len(self._partitions) <= _SHOWN else f" and {len(self._partitions) - _SHOWN} more"
        return f"partition {shown}{more} of dataset {self.dataset!r}"

    def read_burst(self) -> BatchBurst | None:
        """Wait for the next frames, which are of one partition; None at the end of the last partition. Raises as
        :meth:`PartitionStream.read_burst`, and ServerLost.
        """
        while not self._bursts:
            if super().read_burst() is None:
                if self._at == len(self._partitions) - 1:
                    return None
                self._begin_next()
                self._connect(None)
        return self._bursts.popleft()

    def _took(self, burst: BatchBurst) -> None:
        if self._is_slice:
            super()._took(burst)
            self._bursts.append(burst)
            return
        first = 0
        for number, batch in enumerate(burst.batches):
            end = None if batch.num_rows else _end_of(burst.metadata[number] if burst.metadata else None)
            if end is None:
                continue
            self._keep(burst, first, number)
            first = number + 1
            self._end(end)
        self._keep(burst, first, len(burst.batches))

    def _keep(self, burst: BatchBurst, first: int, end: int) -> None:
        """The batches in between are of the present partition, or, if that has ended, of the next one."""
        if first == end:
            return
        self._go_on()
        kept = BatchBurst(
            burst.batches[first:end],
            burst.shared_bytes,
            burst.checksums[first:end],
            burst.metadata[first:end],
            self._parts[self._at],
        )
        self._received.add(kept)
        self._bursts.append(kept)

    def _end(self, end: PartitionEnd) -> None:
        self._go_on()
        if end.partition != self._partitions[self._at]:
            raise self._untrusted(f"partition {end.partition} in the place of {self._partitions[self._at]}")
        totals = ReadTotals(end.rows, end.frames, end.crc32c)
        fault = self._received.fault(totals, {})
        if fault is None and self._received.is_short(totals):
            fault = f"{self.next_frame} frames of partition {end.partition}, which has {end.frames}"
        if fault is not None:
            raise self._untrusted(fault)
        self._ended = True

    def _go_on(self) -> None:
        """Begin the next partition if the present one has ended."""
        if self._ended:
            self._begin_next()
        if self._at == self._until:
            raise self._untrusted("more than the partitions that were asked for")

    def _begin_next(self) -> None:
        self._at += 1
        self._ended = False
        self._received = ReceivedFrames(0, None)

    def _check(self, reading: LaneReader) -> None:
        if self._is_slice:
            super()._check(reading)
        # Else the totals of each partition were compared.
        elif not (self._ended and self._at == self._until - 1):
            raise BrokenStream(f"{self.name} ended inside partition {self._partitions[self._at]}")

    def _ticket(self) -> Ticket:
        if self._is_slice:
            return replace(super()._ticket(), start=self.start)
        self._ended = False  # if its end has come, it comes again
        self._until = min(self._at + _AT_ONCE, len(self._partitions))
        return Ticket(
            self.dataset,
            generation=self.generation,
            from_=self._received.asked_from,
            partitions=self._partitions[self._at : self._until],
            start=self.start,
        )

    # The errors.

    @property
    def _position(self) -> str:
        return f"partition {self._partitions[self._at]} frame {self.next_frame}"

    def _connect(self, failure: Unavailable | None) -> None:
        try:
            self._look_again()
            super()._connect(failure)
        except NotFound as gone:
            said = isinstance(gone, ServerLost) and "server" in gone.detail  # by this stream
            # A server that answers, and has the dataset no more, is not lost.
            if said or not isinstance(gone, ServerLost) or self._is_only:
                raise
            raise self._lost(gone) from gone

    def _pause_after(self, failure: Unavailable) -> None:
        if self.start is not None and not self.server.embedded and refuses(self._locations):
            raise self._lost(failure)
        super()._pause_after(failure)

    def _look_again(self) -> None:
        """Raise ServerLost if the server was silent and still is."""
        if self.start is None or self.start not in _silent:
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
                    _silent.discard(self.start)
                    return
        if failure is not None:
            raise self._lost(failure)

    def stalled(self) -> StreamStalled:
        self._was_silent()
        return super().stalled()

    def _late(self) -> StreamStalled:
        self._was_silent()
        return super()._late()

    def _was_silent(self) -> None:
        if self.start is not None:
            _silent.add(self.start)

    def _give_up(self, last: Unavailable) -> FlightShuffleError:
        if isinstance(last, Unreachable | NoBulkLane) and not self.server.embedded and not self._is_only:
            self._was_silent()
            return self._lost(last)
        return super()._give_up(last)

    @property
    def _is_only(self) -> bool:
        """Whether the dataset is on one server. A later start of that server may have its durable data again."""
        return self.start is None

    @property
    def _locations(self) -> list[str]:
        return [*dict.fromkeys(address.location for address in self._addresses)]

    def _lost(self, last: FlightShuffleError) -> ServerLost:
        where = ", ".join(self._locations)
        tries = (
            f", after {self._tries}"
            if self._tries and not isinstance(last, NotFound)
            else f": {last.message}"
        )
        start = "" if self.start is None else f" with the start {self.start}"
        error = ServerLost(
            f"dataset {self.dataset!r} has lost the server{start} at {where}, at {self._position}{tries}",
            dataset=self.dataset,
            start=self.start,
            server=where,
        )
        error.__cause__ = last
        return error


def _end_of(metadata: Any) -> PartitionEnd | None:
    """The end that a message without rows says: a KeyValueMetadata on the bulk lane, a buffer on the gRPC lane."""
    if metadata is None:
        return None
    if hasattr(metadata, "to_pybytes"):
        return PartitionEnd.parse(metadata.to_pybytes())
    text = dict(metadata).get(PARTITION_ENDED.encode())
    return None if text is None else PartitionEnd.parse(text)


_lost: set[str | None] = set()
"""The starts of servers that streams of this process have found lost: none comes back."""


class StoredPortionStream(PortionStream):
    """As :class:`PortionStream`; the last of the ``locations`` is the object's address."""

    def __init__(self, *of: Any, locations: Sequence[str], **how: Any) -> None:
        super().__init__(*of, locations=[each for each in locations if not is_object(each)], **how)
        self._object = Address("object", locations[-1])

    @property
    def _is_there(self) -> bool:
        return self.address == self._object

    def overdue(self, now_seconds: float) -> bool:
        wait = self._wait
        # A reading thread ends its wait for the server a little later, and goes on at the object.
        return super().overdue(now_seconds - (0 if wait is None or self._is_there else wait[1] / 2))

    def _connect(self, failure: Unavailable | None) -> None:
        if not self._is_there and self.start not in _lost:
            try:
                super()._connect(failure)
            except (ServerLost, Unavailable) as gone:
                # A server that does not know one dataset has others.
                if isinstance(gone, ServerLost) and type(gone.__cause__) is not NotFound:
                    _lost.add(self.start)
                _log.warning("%s is read from %s: %s", self.name, shown(self._object.location), gone.message)
            else:
                return
        if not self._is_there:
            self._addresses, self._turn, self._failures, failure = [self._object], 0, 0, None
        super()._connect(failure)

    def _reading_at(self, address: Address, ticket: Ticket) -> LaneReader:
        if address == self._object:
            return ObjectReader(address.location, ticket)
        return super()._reading_at(address, ticket)
