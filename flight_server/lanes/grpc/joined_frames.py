"""JoinedFrames: small frames that are ready at the same time as one message, which costs about as much as one of them.

Guarantee: a reader gets the rows of its frames, in order; a frame that is ready waits for no later one.

Which readers
    A message takes Python's gRPC about 100 µs, small or large, so frames of 64 KiB reach half the throughput of
    large ones. Any client may get its batches joined, unless it says ``BATCHES_HEADER: stored``, or its ticket has
    ``from`` (also 0), ``until``, ``reader`` or a list of partitions: such a client counts frames, so that it can
    resume. Frames in envelopes are as stored, too. :mod:`flight_server.frames.joining` says which frames can be joined.

Shared
    A joined message is made once for all readers that come to its first frame while any of them is being sent it, or
    while it is kept. Runs of frames end at the same numbers for all readers, so that their messages are the same. Of
    eight readers that begin together each is soon some 10 MiB from the others, so while a dataset has several readers
    the last messages made are kept, up to ``1 / KEPT_PARTS`` of ``sends`` and ``KEPT_MESSAGES``: it saves a fifth of
    the server's time.

Who holds what
    The message holds its own room, of the part of ``sends`` of the reader that makes it, taken only if it is free at
    once; otherwise the frames go out one by one. So another reader may hold room of a part that is not its own, and
    ``eviction`` ends it for that, too. A reader holds the message, and in the room of its first frame that of all of
    them, for gRPC's copy, until the message is sent. It no longer holds the frames. Kept messages are dropped before
    any stream waits for room (``memory.accounts``, "Spare bytes"), none is kept while one waits, and none when no
    reader of its dataset is left.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from flight_server.datasets import Counters, Dataset
from flight_server.frames import Frame, FrameJoiner, SchemaMessage
from flight_server.memory import MemoryPool, Reservation
from flight_server.protocol import wire
from flight_server.transfer import Gathering, Outgoing

JOINED_BYTES = 1 << 20
MOST_BYTES = JOINED_BYTES * 9 // 8
"""Of the frames of one message: with it sixteen frames of 64 KiB, whose headers come on top, are one."""
SMALL_BYTES = 128 << 10
"""Joining costs about as much as sending two frames of this size."""
MAX_FRAMES = 128
KEPT_PARTS = 16
KEPT_LEAST_BYTES = 8 << 10
"""Of what is kept each message takes at least so much: it is some objects beside its bytes."""
KEPT_MESSAGES = 256
"""All are looked at when a dataset's last reader ends, and may be dropped at once: 16,000 took 60 ms."""
_HEADERS_BYTES = 64 << 10
"""Arrow takes a few milliseconds to decode so much of them."""
_MOST_MORE_BYTES = 4096
"""Than the frames have: padding, and another header."""


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class JoinedMessage:
    """One message, how many frames it has, and its room."""

    data: bytes
    frames: int
    room: Reservation


class JoinedFrames:
    """The joined messages of one server. ``sends``: the account."""

    def __init__(self, counters: Counters, sends: MemoryPool) -> None:
        self._counters = counters
        self._sends = sends
        self._most_kept_bytes = (sends.limit_bytes or 0) // KEPT_PARTS
        self._kept_bytes = 0
        self._kept: deque[tuple[Dataset, JoinedMessage]] = deque()  # the oldest first
        self._readers: Counter[Dataset] = Counter()
        sends.drop_spare = self.drop
        # Of each first frame the message that readers are being sent.
        self._sent: weakref.WeakKeyDictionary[Frame, weakref.ref[JoinedMessage]] = weakref.WeakKeyDictionary()

    def joiner(self, dataset: Dataset, schema: SchemaMessage, *, checked: bool) -> Joiner | None:
        """For one read; None if frames of this schema cannot be joined. ``checked``: see :class:`FrameJoiner`."""
        frames = FrameJoiner.of(schema, checked=checked)
        return None if frames is None else Joiner(self, dataset, frames)

    @contextmanager
    def reading(self, dataset: Dataset) -> Iterator[None]:
        """The dataset has one reader more while the block runs."""
        self._readers[dataset] += 1
        try:
            yield
        finally:
            self._readers[dataset] -= 1
            if not self._readers[dataset]:
                del self._readers[dataset]
                self.drop(dataset)

    def find(self, first: Frame, most_frames: int) -> JoinedMessage | None:
        """The message that begins with this frame, of at most so many."""
        reference = self._sent.get(first)
        message = None if reference is None else reference()
        return None if message is None or message.frames > most_frames else message

    def add(self, dataset: Dataset, first: Frame, message: JoinedMessage) -> None:
        self._counters.joins += 1
        self._sent[first] = weakref.ref(message)
        if self._readers[dataset] < 2 or self._sends.has_requests:
            return
        self._kept.append((dataset, message))
        self._kept_bytes += _kept_bytes(message)
        while self._kept_bytes > self._most_kept_bytes or len(self._kept) > KEPT_MESSAGES:
            self._kept_bytes -= _kept_bytes(self._kept.popleft()[1])

    def drop(self, dataset: Dataset | None = None) -> None:
        """Keep no message of the dataset; None: of all."""
        kept = [] if dataset is None else [each for each in self._kept if each[0] is not dataset]
        self._kept = deque(kept)
        self._kept_bytes = sum(_kept_bytes(message) for _, message in kept)


class Joiner:
    """Joins the frames of one read."""

    def __init__(self, shared: JoinedFrames, dataset: Dataset, frames: FrameJoiner) -> None:
        self._shared = shared
        self._dataset = dataset
        self._frames: FrameJoiner | None = frames

    def take(self, run: Sequence[Outgoing]) -> JoinedMessage | None:
        """The message of the first frames of a run that go together; None for fewer than two. The first of them has the
        room of all, and none has its bytes.
        """
        first = run[0].message
        run = list(takewhile(lambda outgoing: isinstance(outgoing.message, Frame), run))
        if len(run) < 2 or not isinstance(first, Frame):
            return None
        run = run[: until_boundary(first)]
        message = self._shared.find(first, len(run)) or self._made(first, run)
        if message is not None:
            hand_over(run[: message.frames])
        return message

    def _made(self, first: Frame, run: Sequence[Outgoing]) -> JoinedMessage | None:
        room = run[0].room
        # Reserved first: without room no frame is looked at.
        most_bytes = _MOST_MORE_BYTES + sum(outgoing.message.size_bytes for outgoing in run)
        if self._frames is None or len(run) < 2 or room is None:
            return None
        own = room.pool.try_reserve(most_bytes)
        parts = [] if own is None else _joinable(self._frames, run)
        if own is None or len(parts) < 2:
            return None
        data = self._frames.join(parts)
        if data is None or len(data) > most_bytes:
            self._frames = None  # Arrow cannot join such columns, or repeats their buffers
            return None
        own.shrink(most_bytes - len(data))
        message = JoinedMessage(data, len(parts), own)
        self._shared.add(self._dataset, first, message)
        return message


def _kept_bytes(message: JoinedMessage) -> int:
    return max(KEPT_LEAST_BYTES, len(message.data))


def until_boundary(first: Frame) -> int:
    """How many frames there are from this one to the next number at which every run ends: a multiple of the power of
    two with which frames of this size are at most ``MOST_BYTES``.
    """
    frames = min(MAX_FRAMES, max(1, MOST_BYTES // max(first.size_bytes, 1)))
    step = 1 << (frames.bit_length() - 1)
    return step - first.index % step


GATHERING = Gathering(SMALL_BYTES, until_boundary)


def _joinable(joiner: FrameJoiner, run: Sequence[Outgoing]) -> list[wire.FlightData]:
    """The parts of the frames, from the first on, that can be joined."""
    joinable: list[wire.FlightData] = []
    header_bytes = 0
    for outgoing in run:
        parts = joiner.parts_of(outgoing.data)
        if parts is None:
            break
        header_bytes += len(parts.header)
        if header_bytes > _HEADERS_BYTES:
            break
        joinable.append(parts)
    return joinable


def small_run(burst: Sequence[Outgoing], at: int) -> Sequence[Outgoing]:
    """The messages of a burst from ``at`` on that may go out as one: at least one."""
    size_bytes, stop = 0, at
    room = burst[at].room
    for outgoing in burst[at : at + MAX_FRAMES]:
        size_bytes += outgoing.message.size_bytes
        too_large = outgoing.message.size_bytes > SMALL_BYTES or size_bytes > MOST_BYTES
        if too_large or room is None or outgoing.room is None or outgoing.room.pool is not room.pool:
            break
        stop += 1
    return burst[at : max(stop, at + 1)]


def hand_over(run: Sequence[Outgoing]) -> Reservation:
    """The room of all messages of a run, which its first one has from now on. None of the run keeps its bytes."""
    rooms = [*dict.fromkeys(outgoing.room for outgoing in run if outgoing.room is not None)]
    pool, size_bytes = rooms[0].pool, sum(room.size_bytes for room in rooms)

    def release() -> None:
        for room in rooms:
            room.free()

    if len(rooms) > 1:
        # Without room in between that others could get. A pool beyond its limit gives none, and counts it all the same.
        rooms = [pool.exchange(release, size_bytes) or pool.reserve(size_bytes)]
    for outgoing in run:
        outgoing.park()
    run[0].room = rooms[0]
    return rooms[0]
