"""Reading a partition.

Guarantee: :meth:`Reads.read` yields every frame of the range, exactly once and in order, each with the dictionary
messages that this reader has not been sent yet; at first the dictionaries in force at its start. It ends only with the
last frame that is wanted, or when the partition is sealed and read to its end; everything else is an error.

Bursts
    Each item is a burst: the messages that can be had without waiting, at most ``BURST_MESSAGES`` and ``burst_bytes``
    or one larger message, or the one that was waited for. So small frames can go out in one write, and none is held
    back for the next. A reader that takes little gets little at once (``Pace.allowed_bytes``). Frames in RAM that need
    no dictionary are taken, counted and given room as one run. With a :class:`Gathering` a burst is what its consumer
    may send as one message: small frames, up to a number at which the next burst begins.

Who holds what
    A burst holds its messages' bytes and the room for their copy until the consumer asks for the next burst. The frames
    of a run share their room. By then the consumer must have handed the bytes to its transport and keep nothing of the
    burst: readers that wait for room while they hold some could wait for each other. A consumer whose transport takes
    nothing can ``park`` the burst, which then holds neither, and ``fetch`` each message before it is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat, takewhile
from typing import NamedTuple

from flight_server.concurrency import EndOfQueue, Gone, Subscription, Waits, WouldBlock
from flight_server.datasets import Catalogue, Counters, Dataset, Partition, PartitionState
from flight_server.frames import (
    NO_DICTIONARIES,
    DictionaryState,
    Frame,
    Message,
    Payload,
    SchemaMessage,
    missing_messages,
)
from flight_server.memory import Pace, Reservation
from flight_server.protocol import (
    ACKNOWLEDGE_HEADER,
    GENERATION_HEADER,
    CorruptFrame,
    Unavailable,
)
from flight_server.tiering import Loading, ReadBack, Reader, frame_lost

from .delivery import Delivery
from .frame_ranges import FrameRange

BURST_MESSAGES = 512
"""Which take 5 to 10 ms to take and to send."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """A frame, or a dictionary that it needs, on its way to one reader. ``room``: others of its burst may share it."""

    message: Message
    payload: Payload | None
    room: Reservation | None

    @property
    def data(self) -> bytes:
        """The FlightData message. Only while it is not parked."""
        assert self.payload is not None
        return self.payload.data

    def park(self) -> None:
        """Release the bytes and their room. Twice is fine."""
        self.payload = self.room = None


class Gathering(NamedTuple):
    """Which frames may go as one message: those of ``small_bytes``, from one frame on ``most_frames(frame)``."""

    small_bytes: int
    most_frames: Callable[[Frame], int]

    def cut(self, run: list[Frame]) -> list[Frame]:
        """The first frames of the run that go together: at least one."""
        run = run[: self.most_frames(run[0])]
        small = list(takewhile(lambda frame: frame.size_bytes <= self.small_bytes, run))
        return small or run[:1]


class FrameBurst(list[Outgoing]):
    """The messages of one item, see "Bursts"."""

    __slots__ = ("_back", "_noting", "_partition", "size_bytes")

    def __init__(
        self, back: ReadBack, partition: Partition, noting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__()
        self.size_bytes = 0
        self._back = back
        self._partition = partition
        self._noting = noting

    def release(self) -> None:
        """Drop the messages, with their bytes and room."""
        self.clear()
        self.size_bytes = 0

    def park(self) -> None:
        for outgoing in self:
            outgoing.park()
        self._back.close()

    async def fetch(self, outgoing: Outgoing) -> None:
        """Get bytes and room for a message of the burst again. No message of the burst may hold any.

        Raises:
            CorruptFrame: the bytes came back damaged from disk; the partition has failed.
            ReadTrouble: the disk does not give them now.
            FlightShuffleError: the partition has failed or was dropped meanwhile.
        """
        self._partition.check()
        with self._noting():
            outgoing.payload, outgoing.room = await self._back.next_to_send(outgoing.message)


def head_of_read(dataset: Dataset) -> list[tuple[str, str]]:
    """The headers of both lanes at the start of a read."""
    counted = [(ACKNOWLEDGE_HEADER, "frames")] if dataset.retention.readers is not None else []
    return [(GENERATION_HEADER, dataset.generation), *counted]


@dataclass(eq=False)
class Reads:
    """Reads partitions, for both lanes."""

    catalogue: Catalogue
    waits: Waits
    delivery: Delivery
    counters: Counters
    schema_seconds: float
    resume_seconds: float

    def __post_init__(self) -> None:
        self.budget, self._disk = self.catalogue.budget, self.catalogue.disk
        self.loading = Loading(self._disk, self.budget.metadata)

    async def schema_of(self, dataset: Dataset, reader: Reader) -> SchemaMessage:
        """The dataset's schema, once ``create`` or a producer has given it. Raises Unavailable: there was none within
        ``schema_seconds``; DatasetDropped: the dataset was dropped before.
        """
        if dataset.schema is not None:
            return dataset.schema
        seconds = self.schema_seconds
        try:
            with self.waits.enter("producer", **reader.facts, deadline_seconds=seconds):
                async with asyncio.timeout(seconds):
                    return await dataset.described()
        except TimeoutError:
            raise Unavailable.about(
                dataset.name,
                f"has no schema yet: no producer has come within {seconds} s; start a producer, or create the "
                "dataset with its schema",
            ) from None

    async def read(
        self,
        dataset: Dataset,
        reader: Reader,
        frame_range: FrameRange,
        *,
        burst_bytes: int = 0,
        gathering: Gathering | None = None,
    ) -> AsyncGenerator[FrameBurst, None]:
        """Every frame of the range, once and in order. Close the generator to leave; cancelling it is safe.

        Raises:
            Released: retention has released the first frame, or a later one before this reader took it.
            InvalidRequest: see :meth:`FrameRange.check`.
            OutOfBudget: see :meth:`Loading.load`.
            ReadTrouble: the disk does not give a frame back now.
            Conflict: the reader's name has gone on in another connection.
            FlightShuffleError: the partition failed or was dropped.
        """
        partition = dataset.partition(reader.partition)
        dataset.attached.want(dataset, reader.partition)
        await self.loading.load(dataset, partition)
        if partition.state is PartitionState.SEALED:
            frame_range.check(partition)
        subscription, epoch = partition.subscribe(frame_range.start, frame_range.until), partition.epoch
        with self.delivery.reading(subscription, reader, dataset), self._place(dataset, reader, subscription):
            waiting: deque[Message] = deque()
            noting = partial(self._noting_corruption, dataset, partition, epoch)
            back = ReadBack(
                reader,
                subscription,
                waiting,
                self.budget,
                self._disk.io_threads,
                self.waits,
                self.counters.frame_read_back,
            )
            cursor = _Cursor(self.counters, dataset, subscription, waiting, back, frame_range, reader.pace)
            burst = FrameBurst(back, partition, noting)
            try:
                while True:
                    cursor.take(burst, reader.pace.allowed_bytes(burst_bytes), gathering)
                    if not burst and cursor.waiting:
                        with noting():
                            await cursor.fetch(burst)
                    back.drop_kept()
                    if burst:
                        back.read_ahead()
                        yield burst
                        reader.pace.took(burst.size_bytes)
                        back.release_sent(burst.release)
                    elif cursor.ended:
                        if subscription.position != frame_range.until:
                            frame_range.check(partition)
                        return
                    else:
                        awaited = "source" if dataset.attached.pulled else "producer"
                        with self.waits.enter(awaited, **reader.facts):
                            await subscription.wait()
            except Gone as gone:
                raise partition.released(gone) from None
            finally:
                back.close()
                reader.pace.on_stall = None  # a reference cycle would keep the frames of a released partition

    @contextmanager
    def _noting_corruption(self, dataset: Dataset, partition: Partition, epoch: int) -> Iterator[None]:
        """Fail the partition when a frame comes back damaged from disk."""
        try:
            yield
        except CorruptFrame as corrupt:
            raise frame_lost(self._disk.quarantine, dataset, partition, epoch, corrupt).fresh() from corrupt

    @contextmanager
    def _place(self, dataset: Dataset, reader: Reader, subscription: Subscription[Frame]) -> Iterator[None]:
        """Hold a named reader's place, if retention counts readers."""
        if reader.name is None or dataset.retention.readers is None:
            yield
            return
        places = dataset.partition(reader.partition).places
        places.take(reader.name, subscription, time.monotonic())
        try:
            yield
        finally:
            places.leave(reader.name, subscription, time.monotonic() + self.resume_seconds)


@dataclass(eq=False)
class _Cursor:
    """The dictionaries that one reader has been sent, and the messages that it takes next."""

    counters: Counters
    dataset: Dataset
    subscription: Subscription[Frame]
    waiting: deque[Message]  # taken from the subscription, not yet in a burst
    back: ReadBack
    frame_range: FrameRange
    pace: Pace
    ended: bool = False
    _sent: DictionaryState = NO_DICTIONARIES

    def take(self, burst: FrameBurst, burst_bytes: int, gathering: Gathering | None) -> None:
        """Add the messages that can be had without waiting; see "Bursts"."""
        if not self.waiting and self._take_run(burst, burst_bytes, gathering):
            return
        most_messages = BURST_MESSAGES
        while not burst or (burst.size_bytes < burst_bytes and len(burst) < most_messages):
            if not self.waiting and not self._next_frame(burst_bytes - burst.size_bytes if burst else None):
                return
            message = self.waiting[0]
            if burst and gathering is not None and message.size_bytes > gathering.small_bytes:
                return
            at_once = self.back.next_nowait(message)
            if at_once is None:
                return
            if not burst and gathering is not None and isinstance(message, Frame):
                most_messages = gathering.most_frames(message)
            self._add(burst, *at_once)

    async def fetch(self, burst: FrameBurst) -> None:
        """Wait for the next message."""
        self._add(burst, *await self.back.next_to_send(self.waiting[0]))

    def _take_run(self, burst: FrameBurst, burst_bytes: int, gathering: Gathering | None) -> bool:
        """Take the next frames in RAM that need no dictionary, with room for all. False: take the next alone."""
        try:
            run = self.subscription.next_run(BURST_MESSAGES, burst_bytes)
        except WouldBlock:
            return True
        except EndOfQueue:
            self.ended = True
            return True
        if gathering is not None:
            run = gathering.cut(run)
        payloads: list[Payload] = []
        size_bytes = rows = 0
        for frame in run:
            payload = frame.payload
            if payload is None or frame.dictionaries is not self._sent:
                break
            payloads.append(payload)
            size_bytes += frame.size_bytes
            rows += frame.rows
        room = self.back.room_nowait(size_bytes) if payloads else None
        if room is None:
            return False
        self._count(run[: len(payloads)], rows, size_bytes)
        burst.size_bytes = size_bytes
        burst += map(Outgoing, run, payloads, repeat(room))
        return True

    def _next_frame(self, most_bytes: int | None) -> bool:
        """Take the next frame; False if there is none now, or it is larger."""
        if self.ended:
            return False
        try:
            (frame,) = self.subscription.next_run(1, 0)
        except WouldBlock:
            return False
        except EndOfQueue:
            self.ended = True
            return False
        if most_bytes is not None and frame.size_bytes > most_bytes:
            return False
        self.waiting += (*missing_messages(self._sent, frame.dictionaries), frame)
        self._sent = frame.dictionaries
        self._count([frame], frame.rows, frame.size_bytes)
        return True

    def _count(self, frames: list[Frame], rows: int, size_bytes: int) -> None:
        self.subscription.take(len(frames))
        self.frame_range.sent(frames)
        self.pace.rows += rows
        self.dataset.touch()
        self.counters.frames_sent(len(frames), size_bytes)

    def _add(self, burst: FrameBurst, payload: Payload, room: Reservation) -> None:
        message = self.waiting.popleft()
        burst.append(Outgoing(message, payload, room))
        burst.size_bytes += message.size_bytes
