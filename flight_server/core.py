"""Core: the parts of one running server that its two lanes share, and what they count.

``service`` (gRPC) and ``http`` get a core; ``server`` makes it, starts its tasks and ends it. The core
itself starts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from .background import Background
from .broadcast import Subscription
from .budget import STALL_SECONDS, Budget, reserve
from .catalogue import Catalogue
from .config import Settings
from .dataset import Dataset
from .errors import CorruptFrame, OutOfBudget, ReaderTooSlow
from .frames import Frame
from .memory import MemoryPool, Reservation
from .partition import Partition
from .quarantine import Quarantined
from .readback import Reader
from .running import Running
from .spiller import Spiller
from .turns import Turns
from .waits import Waits

PROGRESS_SECONDS = 0.5
READER_STALL_SECONDS = 5.0

_log = structlog.get_logger("flight_server.core")


@dataclass
class Counters:
    """What happened since the start; only ever growing."""

    puts: int = 0
    gets: int = 0
    frames_in: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    frames_out: int = 0
    bytes_out: int = 0
    # Record batches that were encoded for this server, by producers or by its own sources. The fan-out
    # encodes nothing, so this equals the number of frames that came in, for any number of readers.
    encodes: int = 0
    frames_read_back: int = 0
    bytes_read_back: int = 0
    readers_ended_as_too_slow: int = 0
    # Of source datasets: how often a partition was pulled, and how often that failed.
    pulls: int = 0
    pulls_failed: int = 0

    def frame_in(self, frame: Frame) -> None:
        """A frame was published."""
        self.frames_in += 1
        self.encodes += 1
        self.rows_in += frame.rows
        self.bytes_in += frame.size_bytes


@dataclass(frozen=True, slots=True)
class _Write:
    """A write to a reader that lasts; see ``Core.deliver``."""

    since: float
    reader: Reader
    room: Reservation | None
    partition: Partition | None


class Core:
    """See the module's text."""

    def __init__(self, settings: Settings, budget: Budget, catalogue: Catalogue) -> None:
        self.settings = settings
        self.budget = budget
        self.catalogue = catalogue
        self.waits = Waits()
        self.turns = Turns()
        self.spiller = Spiller(catalogue)
        self.running = Running()
        self.counters = Counters()
        self.background = Background()
        self.drain_requested = asyncio.Event()
        # What clients are told; known when the listeners are open.
        self.location: str | None = None
        self.http_location: str | None = None
        self.max_schema_bytes = catalogue.schemas.max_bytes = int(
            settings.max_schema or budget.max_schema_bytes
        )
        self.max_message_bytes = int(settings.max_message or budget.max_message_bytes)
        # Those that are attached, with who reads.
        self.readers: dict[Subscription[Frame], Reader] = {}
        # In the order in which they began.
        self._writes: dict[asyncio.Timeout, _Write] = {}
        # For each queue of readers: what it had granted when that last changed, and when that was.
        self._progress = dict.fromkeys((budget.sends, budget.unproven), (0, 0.0))

    async def admit(self, size_bytes: int, *, dataset: str, partition: int | None, peer: str) -> Reservation:
        """Room among the frames for a message that has arrived. Cancelling gives it back.

        Raises:
            OutOfBudget: RAM and disk stayed full until the deadline.
        """
        at_once = self.budget.frames.try_reserve(size_bytes)
        if at_once is not None:
            self.spiller.poke()
            return at_once
        arrived = self.budget.arrivals.reserve(size_bytes)
        try:
            return await reserve(
                self.budget.frames,
                size_bytes,
                self.waits,
                dataset=dataset,
                partition=partition,
                peer=peer,
                deadline_seconds=self.settings.budget_deadline_seconds,
                queued=self.spiller.poke,
            )
        except OutOfBudget as refusal:
            if self.spiller.trouble is None:
                raise
            trouble = f"frames could not be moved to disk: {self.spiller.trouble}"
            raise OutOfBudget(f"{refusal.message}; {trouble}", **refusal.detail) from None
        finally:
            arrived.free()

    async def room_for_arrivals(self, peer: str) -> None:
        """Return when the next message may be read: what has arrived before has found its place."""
        arrivals = self.budget.arrivals
        if arrivals.used_bytes:
            with_room = await reserve(
                arrivals, 1, self.waits, peer=peer, deadline_seconds=self.settings.budget_deadline_seconds
            )
            with_room.free()

    @contextmanager
    def reading(self, subscription: Subscription[Frame], reader: Reader) -> Iterator[None]:
        """Show the subscription in the statistics, and close it at the end."""
        self.readers[subscription] = reader
        self.counters.gets += 1
        try:
            yield
        finally:
            del self.readers[subscription]
            subscription.close()

    def frame_lost(
        self, dataset: Dataset, partition: Partition, epoch: int, corrupt: CorruptFrame
    ) -> CorruptFrame:
        """What did not come back from disk as it went there: fail its partition; the cause for its readers."""
        cause = CorruptFrame(
            f"dataset {partition.dataset!r} partition {partition.index}: {corrupt.message}",
            dataset=partition.dataset,
            partition=partition.index,
        )
        if partition.epoch == epoch and partition.failure is None:
            _log.error(
                "frame_lost", dataset=partition.dataset, partition=partition.index, reason=corrupt.message
            )
            partition.corrupt(cause, epoch)
            files = dataset.files
            if files is not None and files.committed:
                reason = f"partition {partition.index}: {corrupt.message}"
                said = Quarantined.now(dataset.name, dataset.generation, files.directory, reason)
                self.catalogue.disk.disposal.damaged(files, said)
        return cause

    def read_back(self, size_bytes: int) -> None:
        """Count a frame that came from disk."""
        self.counters.frames_read_back += 1
        self.counters.bytes_read_back += size_bytes

    @contextmanager
    def _write_listed(self, timeout: asyncio.Timeout, write: _Write) -> Iterator[None]:
        self._writes[timeout] = write
        try:
            yield
        finally:
            del self._writes[timeout]

    async def deliver(
        self,
        write: Any,
        data: Any,
        reader: Reader,
        *,
        room: Reservation | None = None,
        partition: Partition | None = None,
    ) -> None:
        """Await ``write(data)``: the reader's transport takes the bytes when it can.

        Args:
            room: what the reader holds of ``sends`` meanwhile.
            partition: whose end ends the wait, too.

        Raises:
            ReaderTooSlow: it took nothing for ``READER_STALL_SECONDS`` while others waited for its room.
            FlightShuffleError: the partition has failed or was dropped.
        """
        listed = _Write(asyncio.get_running_loop().time(), reader, room, partition)
        try:
            async with asyncio.timeout(None) as timeout:
                with (
                    self._write_listed(timeout, listed),
                    self.waits.enter(
                        "reader", dataset=reader.dataset, partition=reader.partition, peer=reader.peer
                    ),
                ):
                    await write(data)
        except TimeoutError:
            if partition is not None:
                partition.check()
            self.counters.readers_ended_as_too_slow += 1
            raise ReaderTooSlow(
                f"dataset {reader.dataset!r} partition {reader.partition}: this reader took nothing for "
                f"{self._reader_stall_seconds} s while others waited for the room it held; read on from the "
                "next frame, faster",
                dataset=reader.dataset,
                partition=reader.partition,
            ) from None

    @property
    def _reader_stall_seconds(self) -> float:
        return min(READER_STALL_SECONDS, self.settings.stall_seconds)

    def end_stalled_readers(self) -> None:
        """Look after the writes that last. Called twice a second.

        A reader whose write has lasted for ``STALL_SECONDS`` has to prove itself again, and loses what was
        read ahead for it. Where readers wait and none of them has got room for ``PROGRESS_SECONDS``, the
        one that has stalled for longest is ended, if that is ``READER_STALL_SECONDS``, or ``stall_seconds`` if
        those are less: one at each call.
        """
        now = asyncio.get_running_loop().time()
        for timeout, write in self._writes.items():
            if now - write.since >= STALL_SECONDS:
                write.reader.pace.stall()
            if write.partition is not None and write.partition.failure is not None and timeout.when() is None:
                timeout.reschedule(now)
        patience_seconds = min(PROGRESS_SECONDS, self._reader_stall_seconds)
        for pool, (granted, since) in self._progress.items():
            if pool.granted != granted or not pool.waiting:
                self._progress[pool] = (pool.granted, now)
            elif now - since >= patience_seconds:
                self._end_longest(pool, now)

    def _end_longest(self, pool: MemoryPool, now: float) -> None:
        """End the reader that has stalled for longest of those that hold room of the pool."""
        for timeout, write in self._writes.items():
            if now - write.since < self._reader_stall_seconds:
                return
            room = write.room
            if room is not None and pool in (room.pool, self.budget.sends) and timeout.when() is None:
                timeout.reschedule(now)
                return
