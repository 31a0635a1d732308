"""What a stream reads, and how far it is: a partition or a range of its frames, or the partitions of a portion.

Guarantee: :meth:`Cursor.take` hands out each batch of what is read once and in order, and :meth:`Cursor.end` is True
only where all of it agrees with the server's totals. A cursor is plain state: no I/O, no thread, no clock. One stream
(``read_stream``) moves it; ``version_cursor`` has the one of a changelog.

Totals of a partition
    Every difference that they can show is an error: frames that lack or are too many, other rows, another checksum,
    another range. Of a read to the partition's end the server sends those of the whole partition, so rows and checksum
    are compared if the read began at frame 0, over all connections. Of a read with ``until`` it sends those of the last
    connection's range (``transfer.frame_ranges``), so they are compared for that connection. The frames are counted in
    both. Frames that lack may come over another connection; any other difference cannot be mended.

Portions
    A portion is what one server holds of a dataset, or of it the partitions that are read, in one stream. The batches
    of each come only in bursts of their own, whose ``part`` is the partition's, and the next partition's only after the
    totals that the server sends at the end of each (``flight_server.transfer.listed_reads``) agree with what was
    received. After a broken connection the read goes on at the partition and frame where it was. One connection is
    asked for at most ``PARTITIONS_AT_ONCE`` partitions, and the next one for those behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flight_server.protocol import (
    FROM_TRAILER,
    PARTITION_ENDED,
    UNTIL_TRAILER,
    FlightShuffleError,
    PartitionEnd,
    PartitionFailed,
    Ticket,
    Unavailable,
)
from flight_server.protocol.checksums import running_crc32c

from .lane import Batch, BatchBurst, BrokenStream, ReadTotals

PARTITIONS_AT_ONCE = 1000
"""A URL of the bulk lane may have 8 KB."""
_SHOWN = 5


class Cursor(Protocol):
    """What one stream reads, and how far it is.

    ``generation`` is set by the stream when the first answer names it. ``start`` is that of the only server whose data
    will do; None if any server's will. ``reader`` is the name that acknowledges frames, None if none are, and
    ``may_repeat`` says that a reader of this name may be tried again from its first frame. ``follows``: it has no end,
    and silence is no failure. ``next_frame`` is the number of the frame to come, ``rows`` counts the rows before it,
    and ``begun`` says whether frames were received: all of the partition that is read now.
    """

    name: str
    dataset: str
    partition: int | None
    generation: str | None
    start: str | None
    reader: str | None
    may_repeat: bool
    follows: bool

    @property
    def position(self) -> str: ...

    @property
    def next_frame(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def begun(self) -> bool: ...

    def ticket(self) -> Ticket:
        """A connection begins: what it is asked for."""

    def take(self, burst: BatchBurst) -> list[BatchBurst]:
        """A burst was received; those that may be handed out. Raises PartitionFailed: it cannot be of what is read."""

    def end(self, totals: ReadTotals | None, headers: Mapping[str, str]) -> bool:
        """A connection ended as the server meant it. True: all is read; False: the next connection has the rest.

        Raises:
            BrokenStream: something lacks that another connection may have.
            PartitionFailed: what was read differs from the server's totals.
        """

    def cut(self, failure: Unavailable) -> FlightShuffleError | None:
        """The error if a read that broke off here cannot be resumed."""


class _FrameCursor:
    """What the cursors below have in common: the present partition's frames from ``first`` to before ``until``, or to
    its end.
    """

    reader: str | None = None
    may_repeat = False
    follows = False

    def __init__(self, ticket: Ticket, name: str) -> None:
        self.name = f"{name} {ticket.dataset!r}"
        self.dataset = ticket.dataset
        self.partition = ticket.partition
        self.generation = ticket.generation
        self.start = ticket.start
        self._begin(ticket.from_, ticket.until)

    def _begin(self, first: int, until: int | None = None) -> None:
        self.next_frame = self._first = self._asked_from = first
        self.rows = self._rows_before = 0
        self._until = until
        self._crc32c = 0 if first == 0 or until is not None else None  # None: not all checksums are known

    @property
    def begun(self) -> bool:
        return self.next_frame > self._first

    def cut(self, failure: Unavailable) -> None:
        """None: it goes on at the next frame."""

    def _ask(self) -> None:
        """A new connection begins, which asks for the next frame."""
        self._asked_from = self.next_frame
        if self._until is not None:
            self._rows_before, self._crc32c = self.rows, 0

    def _add(self, batches: Sequence[Batch], checksums: Sequence[int]) -> None:
        self.next_frame += len(batches)
        for batch in batches:
            self.rows += batch.num_rows
        if len(checksums) != len(batches):
            self._crc32c = None
        elif self._crc32c is not None:
            for checksum in checksums:
                self._crc32c = running_crc32c(self._crc32c, checksum)

    def _is_short(self, totals: ReadTotals) -> bool:
        """Whether frames lack, which another connection may have."""
        return self.next_frame < self._end(totals)

    def _fault(self, totals: ReadTotals, headers: Mapping[str, str]) -> str | None:
        """Why the frames, of which none lacks, differ from the request; None if they do not."""
        began, until = headers.get(FROM_TRAILER), headers.get(UNTIL_TRAILER)
        ranged = self._until is not None
        is_wrong = (
            self.next_frame > self._end(totals)
            or (ranged and (self.next_frame != self._until or until != str(self._until)))
            or ((ranged or self._first == 0) and self.rows - self._rows_before != totals.rows)
            or (self._crc32c is not None and totals.crc32c not in (None, self._crc32c))
            or (began is not None and began != str(self._asked_from))
        )
        if not is_wrong:
            return None
        request = f"frame {self._asked_from}" + (f" to before {self._until}" if ranged else "")
        answer = f"frame {began}" + (f" to before {until}" if ranged else "")
        return (
            f"{self.rows - self._rows_before} rows up to frame {self.next_frame}, last asked from {request}; the "
            f"server counts {totals.rows} rows in {totals.frames} frames, and says that it gave from {answer}; "
            f"checksums {_hex(self._crc32c)} and {_hex(totals.crc32c)}"
        )

    def _end(self, totals: ReadTotals) -> int:
        return totals.frames if self._until is None else self._asked_from + totals.frames

    def _untrusted(self, fault: str) -> PartitionFailed:
        return PartitionFailed(
            f"{self.name} gave {fault}: what was read cannot be trusted",
            dataset=self.dataset,
            partition=self.partition,
        )


def _hex(checksum: int | None) -> str:
    return "unknown" if checksum is None else f"{checksum:08x}"


class PartitionCursor(_FrameCursor):
    """The frames of one partition that a ticket asks for: ``from_`` is the first, ``until`` the one after the last. A
    reader without a name is one of its own.
    """

    def __init__(self, ticket: Ticket) -> None:
        which = "the dataset" if ticket.partition is None else f"partition {ticket.partition} of dataset"
        super().__init__(ticket, which)
        self.may_repeat = ticket.reader is not None
        self.reader = ticket.reader or uuid.uuid4().hex

    @property
    def position(self) -> str:
        return f"frame {self.next_frame}"

    def ticket(self) -> Ticket:
        self._ask()
        return Ticket(
            self.dataset,
            self.partition,
            self.generation,
            self.next_frame,
            self.reader,
            until=self._until,
            start=self.start,
        )

    def take(self, burst: BatchBurst) -> list[BatchBurst]:
        self._add(burst.batches, burst.checksums)
        if self._until is not None and self.next_frame > self._until:
            raise self._untrusted(f"frames past the last one that was asked for, {self._until}")
        return [burst]

    def end(self, totals: ReadTotals | None, headers: Mapping[str, str]) -> bool:
        assert totals is not None
        if self._is_short(totals):
            raise BrokenStream(
                f"{self.name} ended after {self.next_frame} frames; the server counts {totals.frames}"
            )
        if (fault := self._fault(totals, headers)) is not None:
            raise self._untrusted(fault)
        return True


class PortionCursor(_FrameCursor):
    """Several partitions.

    Args:
        parts: the partitions, in the order in which they are read, and the ``part`` of each one's bursts.
    """

    def __init__(
        self, dataset: str, parts: Mapping[int, int], *, generation: str | None, start: str | None
    ) -> None:
        self._partitions = tuple(parts)
        more = len(parts) - _SHOWN
        shown = ", ".join(map(str, self._partitions[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
        super().__init__(Ticket(dataset, generation=generation, start=start), f"partition {shown} of dataset")
        self._parts = tuple(parts.values())
        self._at = 0
        self._after = 0  # of those that the connection was asked for
        self._ended = False

    @property
    def position(self) -> str:
        return f"partition {self._partitions[self._at]} frame {self.next_frame}"

    def ticket(self) -> Ticket:
        self._ask()
        self._ended = False  # if its end has come, it comes again
        self._after = min(self._at + PARTITIONS_AT_ONCE, len(self._partitions))
        return Ticket(
            self.dataset,
            generation=self.generation,
            from_=self.next_frame,
            partitions=self._partitions[self._at : self._after],
            start=self.start,
        )

    def take(self, burst: BatchBurst) -> list[BatchBurst]:
        kept: list[BatchBurst] = []
        first = 0
        for number, batch in enumerate(burst.batches):
            if batch.num_rows or not burst.metadata or (end := _end_of(burst.metadata[number])) is None:
                continue
            self._keep(burst, first, number, kept)
            self._compare(end)
            first = number + 1
        self._keep(burst, first, len(burst.batches), kept)
        return kept

    def _keep(self, burst: BatchBurst, first: int, end: int, kept: list[BatchBurst]) -> None:
        """The batches in between are of the present partition, or, if that has ended, of the next one."""
        if first == end:
            return
        self._go_on()
        batches, checksums = burst.batches[first:end], burst.checksums[first:end]
        self._add(batches, checksums)
        part = self._parts[self._at]
        kept.append(BatchBurst(batches, burst.shared_bytes, checksums, burst.metadata[first:end], part))

    def _compare(self, end: PartitionEnd) -> None:
        self._go_on()
        if end.partition != self._partitions[self._at]:
            raise self._untrusted(f"partition {end.partition} in the place of {self._partitions[self._at]}")
        totals = ReadTotals(end.rows, end.frames, end.crc32c)
        fault = self._fault(totals, {})
        if fault is None and self._is_short(totals):
            fault = f"{self.next_frame} frames of partition {end.partition}, which has {end.frames}"
        if fault is not None:
            raise self._untrusted(fault)
        self._ended = True

    def _go_on(self) -> None:
        """Begin the next partition if the present one has ended."""
        if self._ended:
            self._begin_next()
        if self._at == self._after:
            raise self._untrusted("more than the partitions that were asked for")

    def _begin_next(self) -> None:
        self._at += 1
        self._ended = False
        self._begin(0)

    def end(self, totals: ReadTotals | None, headers: Mapping[str, str]) -> bool:  # noqa: ARG002
        """The totals of each partition were compared before."""
        if not (self._ended and self._at == self._after - 1):
            raise BrokenStream(f"{self.name} ended inside partition {self._partitions[self._at]}")
        if self._after == len(self._partitions):
            return True
        self._begin_next()
        return False


def _end_of(metadata: Any) -> PartitionEnd | None:
    """The end that a message without rows says: a KeyValueMetadata on the bulk lane, a buffer on the gRPC lane."""
    if metadata is None:
        return None
    if hasattr(metadata, "to_pybytes"):
        return PartitionEnd.parse(metadata.to_pybytes())
    text = dict(metadata).get(PARTITION_ENDED.encode())
    return None if text is None else PartitionEnd.parse(text)
