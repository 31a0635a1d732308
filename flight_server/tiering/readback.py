"""ReadBack: the bytes of a subscription's frames and dictionaries, from RAM or disk, and room to send them.

Guarantee: ``next_to_send`` returns the message's own bytes and a reservation for the transport's copy of them, or
raises. Messages on disk come back in bursts of up to ``BURST_BYTES`` or one larger message, with one thread hop for
each burst. Frames read back stay at hand while a dictionary, which no burst foresees, is read before them.

No circular wait
    A reader never waits for bytes of the account ``sends`` while it holds some: the caller of ``next_to_send`` has
    released all bytes of its last call. If room is not free at once, the reader releases everything that it has read
    back and asks in one request for twice the frame's size: for its bytes, which may be on disk by then, and for their
    copy. Meanwhile it holds no bytes, because held bytes cannot be spilled, so producers would wait for readers. Frames
    read ahead, and those after the first of a burst, take only room that is free at once.

Disk trouble
    A failed read is tried again after each of ``RETRY_SECONDS``. Then the reader gets ``ReadTrouble``, which it
    can retry; the frame stays on disk.

Unproven readers (``memory.accounts``)
    Their room is in the account's part ``unproven`` or in its part ``further``. ``release_sent`` keeps the room of sent
    messages for the next ones; the reader releases it before it waits. One that has just stalled keeps none, so that
    steady slow readers, of which each message takes seconds, have the room in turn. Unproven readers do not read ahead.

Who holds what
    This object, which belongs to one stream, holds the bytes read back; other readers of the same frames share them
    (``Message.at_hand``). A burst that a thread still reads when the stream ends stays counted until the thread is
    done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import structlog

from flight_server.concurrency import Subscription, Waits
from flight_server.datasets import Dataset, Partition
from flight_server.frames import Frame, Message, Payload
from flight_server.memory import Budget, MemoryPool, Pace, Reservation, reserve
from flight_server.protocol import CorruptFrame, ReadTrouble
from flight_server.records import DiskTrouble, Quarantine, Quarantined

_log = structlog.get_logger("flight_server.tiering.readback")

BURST_BYTES = 2 << 20
BURST_FRAMES = 256
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4)

_Burst = list[tuple[Message, Reservation]]
_Results = list[bytes | CorruptFrame | DiskTrouble]


@dataclass(frozen=True)
class Reader:
    """A reader, for waits and errors, and its pace. ``name``: its ticket's, see ``datasets.places``."""

    dataset: str
    partition: int
    peer: str
    pace: Pace = field(default_factory=Pace, compare=False)
    name: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "partition": self.partition, "peer": self.peer}


@dataclass(eq=False)
class ReadBack:
    """The bytes for one subscription. ``waiting``: messages that the reader has taken from the subscription and asks
    for next. ``counted``: called with the size of each frame read from disk.
    """

    reader: Reader
    subscription: Subscription[Frame]
    waiting: Iterable[Message]
    budget: Budget
    threads: Executor
    waits: Waits
    counted: Callable[[int], None]
    _ready: dict[Message, Payload] = field(default_factory=dict)
    _ahead: tuple[_Burst, asyncio.Future[_Results]] | None = None
    # Of an unproven reader: the room of its messages, and the room kept for the next ones.
    _taken_bytes: int = 0
    _kept: Reservation | None = None

    def __post_init__(self) -> None:
        self.reader.pace.on_stall = self.drop_ahead

    @property
    def _sends(self) -> MemoryPool:
        return self.budget.sends_for(self.reader.pace)

    @property
    def _has_stalled(self) -> bool:
        """Whether the reader has just taken a message slowly."""
        return self.reader.pace.begun and not self.reader.pace.allowed_bytes(1)

    def room_nowait(self, size_bytes: int) -> Reservation | None:
        """Room for the copy of messages whose bytes are in RAM; None if it is not free."""
        room = self._room(size_bytes)
        if room is not None:
            self._taken_bytes += size_bytes
        return room

    def next_nowait(self, frame: Message) -> tuple[Payload, Reservation] | None:
        """As :meth:`next_to_send`; None, and nothing taken, if the bytes are not in RAM or the room is not free."""
        payload = self._ready.get(frame) or frame.at_hand()
        if payload is None:
            return None
        room = self.room_nowait(frame.size_bytes)
        if room is None:
            return None
        self._ready.pop(frame, None)
        return payload, room

    async def next_to_send(self, frame: Message) -> tuple[Payload, Reservation]:
        """The message's bytes and room for their copy. The caller holds no bytes of ``sends`` (see "No circular wait").

        Cancelling is safe: granted room is released.

        Raises:
            CorruptFrame: the bytes came back from disk with another checksum.
            ReadTrouble: the disk returned errors; a later call may succeed.
        """
        if frame not in self._ready and self._ahead is not None and frame.at_hand() is None:
            await self._finish_ahead()
        at_once = self.next_nowait(frame)
        if at_once is not None:
            return at_once
        room = self._room(2 * frame.size_bytes)
        self.drop_kept()
        if room is None:
            self.close()
            room = await self._reserve(2 * frame.size_bytes)
        self._taken_bytes += frame.size_bytes
        payload = self._ready.pop(frame, None) or frame.at_hand()
        if payload is not None:
            room.shrink(frame.size_bytes)
        else:
            self._taken_bytes += frame.size_bytes
            burst = self._burst_from(frame, room.split(frame.size_bytes))
            with self._wait("disk"):
                results = await self._submit(burst)
                for seconds in RETRY_SECONDS:
                    if not isinstance(results[0], DiskTrouble):
                        break
                    await asyncio.sleep(seconds)
                    results = await self._submit(burst)
            self._keep(burst, results, awaited=frame)
            payload = self._ready.pop(frame)
        return payload, room

    async def _finish_ahead(self) -> None:
        # Separate, so that no variable holds the burst while the reader waits for room.
        assert self._ahead is not None
        burst, future = self._ahead
        self._ahead = None
        with self._wait("disk"):
            self._keep(burst, await future, awaited=None)

    def read_ahead(self) -> None:
        """Start to read the next frames, while the caller sends, if they are on disk and room is free."""
        if self.reader.pace.proven and self._ahead is None and len(self._ready) <= 1:
            burst = self._burst_from(None, None)
            if burst:
                self._ahead = burst, self._submit(burst)

    def release_sent(self, run: Callable[[], object]) -> None:
        """Call ``run``, which drops the messages sent; an unproven reader keeps their room, unless it has stalled."""
        self._kept = None
        if self.reader.pace.proven or self._has_stalled:
            run()
        else:
            self._kept = self._sends.exchange(run, self._taken_bytes)
        self._taken_bytes = 0

    def drop_ahead(self) -> None:
        """Release the bytes read ahead, a burst being read when it is done. Twice is fine."""
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None
        self._ready.clear()

    def close(self) -> None:
        """Release everything. Twice is fine."""
        self.drop_ahead()
        self.drop_kept()

    def drop_kept(self) -> None:
        """Release the kept room. The caller does so before any wait."""
        self._kept = None

    def _room(self, size_bytes: int) -> Reservation | None:
        """A reservation out of the kept room, or of free room; None if neither."""
        kept = self._kept
        if kept is not None:
            missing_bytes = size_bytes - kept.size_bytes
            if missing_bytes <= 0 or kept.try_grow(missing_bytes):
                return kept.split(size_bytes)
            self._kept = None
            del kept
        return self._sends.try_reserve(size_bytes)

    def _trouble(self, trouble: DiskTrouble) -> ReadTrouble:
        who = self.reader
        _log.warning("frame_not_read", dataset=who.dataset, partition=who.partition, trouble=str(trouble))
        return ReadTrouble.about(
            who.dataset,
            f": the disk does not give a frame back now: {trouble}; nothing is given up, read on from this frame "
            "later",
            partition=who.partition,
        )

    def _wait(self, what: str) -> AbstractContextManager[int]:
        return self.waits.enter(what, **self.reader.facts)

    async def _reserve(self, size_bytes: int) -> Reservation:
        fresh = not self._has_stalled
        return await reserve(self._sends, size_bytes, self.waits, **self.reader.facts, fresh=fresh)

    def _burst_from(self, frame: Message | None, reservation: Reservation | None) -> _Burst:
        """The messages to read together: ``frame``, and those of the next ``BURST_FRAMES`` that follow it on disk."""
        burst: _Burst = []
        size_bytes = 0
        if frame is not None and reservation is not None:
            burst.append((frame, reservation))
            size_bytes = frame.size_bytes
        for following in islice(chain(self.waiting, self.subscription.upcoming()), BURST_FRAMES):
            if following is frame:
                continue
            size_bytes += following.size_bytes
            if burst and size_bytes > BURST_BYTES:
                break
            if following in self._ready:
                continue
            if following.at_hand() is not None:
                break
            room = self._sends.try_reserve(following.size_bytes)
            if room is None:
                break
            burst.append((following, room))
        return burst

    def _submit(self, burst: _Burst) -> asyncio.Future[_Results]:
        return asyncio.get_running_loop().run_in_executor(self.threads, _read_all, burst)

    def _keep(self, burst: _Burst, results: _Results, *, awaited: Message | None) -> None:
        for (frame, reservation), data in zip(burst, results, strict=True):
            if isinstance(data, DiskTrouble):
                if frame is awaited:
                    raise self._trouble(data)
                return
            if isinstance(data, CorruptFrame):
                if frame is awaited:
                    # Not `data`: its traceback would keep this call's variables, and so the burst.
                    raise data.fresh()
                return  # raised when the reader gets there
            if isinstance(frame, Frame):
                self.counted(len(data))
            payload = Payload(data, reservation)
            frame.share(payload)
            self._ready[frame] = payload


def _read_all(burst: _Burst) -> _Results:
    results: _Results = []
    for frame, _ in burst:
        try:
            results.append(frame.read_back())
        except CorruptFrame as corrupt:
            # Without its traceback, which would keep the burst's results and reservations.
            results.append(corrupt.fresh())
        except DiskTrouble as trouble:
            results.append(DiskTrouble(str(trouble), full=trouble.full))
    return results


def frame_lost(
    quarantine: Quarantine, dataset: Dataset, partition: Partition, epoch: int, corrupt: CorruptFrame
) -> CorruptFrame:
    """Fail the partition, and note the damage if its dataset is committed on disk; the cause for its readers. Changes
    nothing if the partition has failed or was reopened since. ``epoch``: the partition's when it had the frame.
    """
    cause = CorruptFrame.about(partition.dataset, f": {corrupt.message}", partition=partition.index)
    if partition.epoch == epoch and partition.failure is None:
        _log.error("frame_lost", dataset=partition.dataset, partition=partition.index, reason=corrupt.message)
        partition.corrupt(cause, epoch)
        note_damage(quarantine, dataset, f"partition {partition.index}: {corrupt.message}")
    return cause


def note_damage(quarantine: Quarantine, dataset: Dataset, reason: str) -> None:
    """Note in the quarantine why a partition has failed, if its dataset is committed on disk."""
    on_disk = dataset.on_disk
    if on_disk is not None and on_disk.row is not None:
        files = [segment.path.name for segment, _ in on_disk.files]
        on_disk.damaged = True
        quarantine.note(Quarantined.now(dataset.name, dataset.generation, reason, files, served=True))
