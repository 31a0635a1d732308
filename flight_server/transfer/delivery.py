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
from flight_server.memory import Reservation
from flight_server.protocol import ReaderTooSlow
from flight_server.tiering import Reader

READER_STALL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Write:
    """A write that has not ended."""

    since: float
    reader: Reader
    room: Reservation | None
    partition: Partition | None


class Delivery:
    """The readers and writes of one server."""

    def __init__(self, waits: Waits, counters: Counters, *, stall_seconds: float) -> None:
        self.stall_seconds = min(READER_STALL_SECONDS, stall_seconds)
        self.readers: dict[Subscription[Frame], Reader] = {}
        self._read: dict[int, Dataset] = {}  # by the id of the reader
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
            yield
        finally:
            del self.readers[subscription], self._read[id(reader)]
            subscription.close()

    def datasets(self) -> list[Dataset]:
        """Of each attached reader the generation that it reads."""
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
        partition: Partition | None = None,
    ) -> None:
        """Await ``write(data)``: the reader's transport takes the bytes.

        Args:
            room: what the reader holds of ``sends`` meanwhile.

        Raises:
            ReaderTooSlow: the reader took nothing for ``stall_seconds`` while others waited for its room.
            FlightShuffleError: ``partition`` has failed or was dropped meanwhile.
        """
        listed = Write(asyncio.get_running_loop().time(), reader, room, partition)
        try:
            async with asyncio.timeout(None) as timeout:
                with (
                    self._listed(timeout, listed),
                    self._waits.enter(
                        "reader", dataset=reader.dataset, partition=reader.partition, peer=reader.peer
                    ),
                ):
                    await write(data)
        except TimeoutError:
            if partition is not None:
                partition.check()
            self._counters.readers_ended_as_too_slow += 1
            raise ReaderTooSlow(
                f"dataset {reader.dataset!r} partition {reader.partition}: this reader took nothing for "
                f"{self.stall_seconds} s while others waited for the room it held; read on from the "
                "next frame, faster",
                dataset=reader.dataset,
                partition=reader.partition,
            ) from None

    @contextmanager
    def _listed(self, timeout: asyncio.Timeout, write: Write) -> Iterator[None]:
        self.writes[timeout] = write
        try:
            yield
        finally:
            del self.writes[timeout]
