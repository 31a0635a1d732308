"""Delivery: lists the attached readers, and each write to them while it lasts; ``eviction`` gives it a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flight_server.concurrency import Subscription, Waits
from flight_server.datasets import Counters, Dataset, Partition
from flight_server.frames import Frame
from flight_server.memory import MemoryPool, Reservation
from flight_server.protocol import ReaderTooSlow
from flight_server.tiering import Reader

READER_STALL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Write:
    """A write that has not ended. ``shared``: the room of a message that other readers may be sent, too."""

    since: float
    reader: Reader
    room: Reservation | None
    shared: Reservation | None
    partition: Partition | None

    @property
    def message_bytes(self) -> int:
        room = self.room if self.shared is None else self.shared
        return 0 if room is None else room.size_bytes

    def held_of(self, pool: MemoryPool) -> int:
        """The bytes of that kind for which the oldest request of the pool waits."""
        rooms = (self.room, self.shared)
        return sum(room.size_bytes for room in rooms if room is not None and pool.lacks(room.pool))


class Delivery:
    """The readers and writes of one server."""

    def __init__(self, waits: Waits, counters: Counters, *, stall_seconds: float) -> None:
        self.stall_seconds = min(READER_STALL_SECONDS, stall_seconds)
        self.readers: dict[Subscription[Frame], Reader] = {}
        self._read: dict[int, Dataset] = {}  # by the id of the reader
        self._first: set[str] = set()  # connections, each named as its peer, whose first reader is attached
        # Each write by its timeout, in the order in which they began.
        self.writes: dict[asyncio.Timeout, Write] = {}
        self._waits = waits
        self._counters = counters

    @contextmanager
    def reading(self, subscription: Subscription[Frame], reader: Reader, dataset: Dataset) -> Iterator[None]:
        """Count the read, list its subscription while the block runs, and close it at the end."""
        self.readers[subscription] = reader
        self._read[id(reader)] = dataset
        self._counters.gets += 1
        try:
            with self.of_connection(reader):
                yield
        finally:
            del self.readers[subscription], self._read[id(reader)]
            subscription.close()

    @contextmanager
    def of_connection(self, reader: Reader) -> Iterator[None]:
        """Tell the reader's pace whether it is the first of its connection: no other one that was is still attached."""
        reader.pace.first = reader.peer not in self._first
        if reader.pace.first:
            self._first.add(reader.peer)
        try:
            yield
        finally:
            if reader.pace.first:
                self._first.discard(reader.peer)

    def datasets(self) -> list[Dataset]:
        return list(self._read.values())

    def dataset_of(self, reader: Reader) -> Dataset | None:
        """The generation that an attached reader reads; None for other answers."""
        return self._read.get(id(reader))

    async def deliver(
        self,
        write: Any,
        data: Any,
        reader: Reader,
        *,
        room: Reservation | None = None,
        shared: Reservation | None = None,
        partition: Partition | None = None,
    ) -> None:
        """Await ``write(data)``: the reader's transport takes the bytes.

        Args:
            room: the bytes of ``sends`` that the reader holds meanwhile.
            shared: those that it holds with other readers.

        Raises:
            ReaderTooSlow: ``eviction`` has ended the reader. The transport may have its bytes until the call has
                ended: they stay counted in ``held``, outside of the part that others wait for.
            FlightShuffleError: ``partition`` has failed or was dropped meanwhile.
        """
        listed = Write(asyncio.get_running_loop().time(), reader, room, shared, partition)
        try:
            async with asyncio.timeout(None) as timeout:
                with self._listed(timeout, listed), self._waits.enter("reader", **reader.facts):
                    await write(data)
        except TimeoutError:
            if partition is not None:
                partition.check()
            self._counters.readers_ended_as_too_slow += 1
            raise self._too_slow(listed) from None

    def _too_slow(self, write: Write) -> ReaderTooSlow:
        # A function of its own: a variable of the caller would be in a cycle with the exception, and keep the room.
        reader, room = write.reader, write.room
        seconds = asyncio.get_running_loop().time() - write.since
        slow = ReaderTooSlow.about(
            reader.dataset,
            f": this reader took nothing for {seconds:.1f} s while others waited for the room it held; read on from "
            "the next frame, faster",
            partition=reader.partition,
        )
        if room is not None:
            slow.held = room.pool.whole.exchange(room.free, room.size_bytes)
        return slow

    @contextmanager
    def _listed(self, timeout: asyncio.Timeout, write: Write) -> Iterator[None]:
        self.writes[timeout] = write
        try:
            yield
        finally:
            del self.writes[timeout]
