"""The frames of a partition that one read gives, and their totals at its end.

Guarantee: a read with ``until`` gives exactly the frames from ``start`` to before ``until``, or an error.

Trailers
    A read to the end of the partition gives the totals of the whole partition, from its first frame. One with ``until``
    gives the totals of the frames that this very read has sent, because those of another range may be released.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from flight_server.datasets import Dataset, Partition, PartitionState
from flight_server.frames import Frame
from flight_server.protocol import (
    CRC_TRAILER,
    FRAMES_TRAILER,
    FROM_TRAILER,
    ROWS_TRAILER,
    UNTIL_TRAILER,
    InvalidRequest,
    Ticket,
)
from flight_server.protocol.checksums import running_crc32c
from flight_server.tiering import Reader


class FrameRange:
    """The range of one read, and the totals of the frames that it has sent. ``until`` None: to the partition's end."""

    __slots__ = ("_crc32c", "_frames", "_rows", "start", "until")

    def __init__(self, start: int = 0, until: int | None = None) -> None:
        self.start = start
        self.until = until
        self._rows = self._frames = self._crc32c = 0

    @classmethod
    def of(cls, ticket: Ticket, *, first: bool = True) -> FrameRange:
        """Of a partition that a ticket names: the ``first`` one begins where the ticket says."""
        return cls(ticket.from_ if first else 0, ticket.until)

    def check(self, partition: Partition) -> None:
        """Compare the range with a sealed partition. Raises InvalidRequest: it has fewer frames."""
        frames = partition.totals.frames
        if max(self.start, self.until or 0) > frames:
            demand = f"read on from {self.start}" if self.start > frames else f"read up to {self.until}"
            raise InvalidRequest.about(
                partition.dataset,
                f"has {frames} frames: there is nothing to {demand}",
                partition=partition.index,
            )

    def sent(self, frames: Iterable[Frame]) -> None:
        if self.until is not None:
            for frame in frames:
                self._rows += frame.rows
                self._frames += 1
                self._crc32c = running_crc32c(self._crc32c, frame.crc32c)

    def place(self) -> list[tuple[str, str]]:
        """The headers that say which frames this is."""
        until = [] if self.until is None else [(UNTIL_TRAILER, str(self.until))]
        return [(FROM_TRAILER, str(self.start)), *until]

    def trailers(self, partition: Partition) -> list[tuple[str, str]]:
        """The trailers of both lanes, after the last frame."""
        rows, frames, crc32c = self._rows, self._frames, self._crc32c
        if self.until is None:
            totals = partition.totals
            rows, frames, crc32c = totals.rows, totals.frames, totals.crc32c
        return [
            (ROWS_TRAILER, str(rows)),
            (FRAMES_TRAILER, str(frames)),
            (CRC_TRAILER, f"{crc32c:08x}"),
            *self.place(),
        ]

    def ended(self, dataset: Dataset, reader: Reader) -> None:
        """Record that the stream has ended cleanly, its last byte included (see ``places``)."""
        partition = dataset.partition(reader.partition)
        known = self.until is not None or partition.state is PartitionState.SEALED
        if reader.name is None and known:
            partition.passed(self.start, self.until, time.monotonic())


class Trailers:
    """The totals of a read of both lanes: those of one partition, or the sums over several."""

    def __init__(self, *, of_one: bool) -> None:
        self._is_of_one = of_one
        self._sums = dict.fromkeys((ROWS_TRAILER, FRAMES_TRAILER), 0)
        self._of_one: dict[str, str] = {}

    def add(self, read: FrameRange, partition: Partition) -> None:
        self._of_one = dict(read.trailers(partition))
        for name in self._sums:
            self._sums[name] += int(self._of_one[name])

    @property
    def fields(self) -> dict[str, str]:
        return self._of_one if self._is_of_one else {name: str(total) for name, total in self._sums.items()}
