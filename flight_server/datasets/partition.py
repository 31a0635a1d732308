"""Partition: the state machine of one partition, and which of its frames can leave RAM.

The states, and the verbs that change them, stand in ``_AFTER``.
An error is a ``Conflict``, raised by the verb's method. *adopt* counts as publish, and *restore* as seal. FAILED and
DROPPED hold no frames: each reader, present or later, gets a fresh copy of the first cause. A restored partition has
its totals; the records of its frames are loaded before it is read first (``tiering.loading``).

Adopting
    A frame of an attempt is in the table, and counted in the totals, from *adopt* on; readers see it from the seal on.
    Before that, ``give_back`` takes all of them out again.

Who holds what
    The partition holds its queue and the table of its frames, the table their bytes and files. All are released with
    the last reference to the partition: its dataset was dropped or replaced, and its last reader has left.

Producing again
    A source's partition can be pulled again after a failure, or after its frames were released instead of spilled.
    ``reopen`` starts from frame 0 under the same generation; ``kinds.source.pulls`` checks that the same frames
    come. Totals stay known once sealed. ``epoch`` counts the reopenings: a task that has awaited compares it
    before it publishes, seals, fails or corrupts.

Victims
    :meth:`Partition.victims` yields the frames in RAM, coldest first: those behind all attached readers (without
    readers, all), oldest first; then, from the hindmost reader on, those between each reader and the next, the
    farthest ahead first. It leaves out the ``NEAR_FRAMES`` from a reader's position on, unless asked for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from flight_server.concurrency import BroadcastQueue, Changes, Gone, Subscription, transitions
from flight_server.frames import Frame, FrameTable, Records
from flight_server.memory import Metadata
from flight_server.protocol import Conflict, DatasetDropped, FlightShuffleError, InvalidRequest, Released
from flight_server.protocol.checksums import running_crc32c

from .places import Places

NEAR_FRAMES = 2


class PartitionState(StrEnum):
    """See ``_AFTER``."""

    OPEN = "open"
    SEALED = "sealed"
    FAILED = "failed"
    DROPPED = "dropped"


_OPEN = PartitionState.OPEN

_AFTER = transitions(
    PartitionState,
    """
    state     publish   seal      fail      drop      reopen    corrupt
    OPEN      OPEN      SEALED    FAILED    DROPPED   error     FAILED
    SEALED    error     SEALED    error     DROPPED   OPEN      FAILED
    FAILED    error     error     FAILED    DROPPED   OPEN      FAILED
    DROPPED   error     error     DROPPED   DROPPED   error     DROPPED
    """,
)


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of frames, sent in the trailers of each read."""

    rows: int
    frames: int
    bytes: int
    crc32c: int


@dataclass(slots=True, eq=False)
class Partition:
    """One partition of one generation. ``retain_readers``: see :class:`~flight_server.concurrency.BroadcastQueue`.
    ``changes``: told of every verb.
    """

    dataset: str
    index: int
    retain_readers: int | None = None
    _changes: Changes = field(default_factory=Changes)
    _metadata: Metadata = field(default_factory=Metadata)
    state: PartitionState = field(default=PartitionState.OPEN, init=False)
    writing: bool = field(default=False, init=False)  # a stream's producer has, or had, this partition
    epoch: int = field(default=0, init=False)  # how often it was reopened
    loaded: bool = field(default=True, init=False)  # the table has the frames that are left
    _whole: Totals | None = field(default=None, init=False)
    table: FrameTable = field(init=False)
    _queue: BroadcastQueue[Frame] = field(init=False)
    _places: Places | None = field(init=False)
    _rows: int = field(init=False)
    _crc32c: int = field(init=False)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.table = FrameTable(self._metadata, self.dataset, self.index)
        self._queue = BroadcastQueue(self.table, self.retain_readers)
        self._places = None
        self._rows = self._crc32c = 0

    @property
    def totals(self) -> Totals:
        """Of the whole partition if it was ever sealed; otherwise :attr:`so_far`."""
        return self._whole or self.so_far

    @property
    def so_far(self) -> Totals:
        """Of the frames published or adopted since the partition was last opened."""
        frames, size_bytes = self._unseen()
        return Totals(
            self._rows, len(self._queue) + frames, self._queue.total_bytes + size_bytes, self._crc32c
        )

    def _unseen(self) -> tuple[int, int]:
        """The frames that were adopted and that readers do not see yet, and their bytes."""
        frames = len(self.table) - len(self._queue)
        # Fewer than none: those of a restored partition are still to be loaded.
        return (frames, self.table.total_bytes - self._queue.total_bytes) if frames > 0 else (0, 0)

    @property
    def failure(self) -> BaseException | None:
        return self._queue.failure

    @property
    def frames_left(self) -> int:
        """How many frames are not released."""
        return len(self._queue) - self._queue.first

    @property
    def first_left(self) -> int:
        """The number of the first frame that is not released."""
        return self._queue.first

    @property
    def bytes_left(self) -> int:
        return self._queue.bytes_left

    @property
    def resident_bytes(self) -> int:
        """The bytes of the unreleased frames in RAM; not those that only readers hold."""
        return self.table.resident_bytes

    def publish(self, frame: Frame) -> None:
        """Append a frame and wake waiting readers. Raises OutOfBudget if ``metadata`` has no room for its record."""
        if self.state is not _OPEN:  # the only state that allows it, without a lookup for each frame
            self._check_step("publish")
        self._queue.publish(frame, frame.size_bytes)
        self._changes.tell()
        self._rows += frame.rows
        self._crc32c = running_crc32c(self._crc32c, frame.crc32c)

    def adopt(self, table: FrameTable, index: int) -> None:
        """Take a frame of an attempt, which then releases it; see "Adopting"."""
        if self.state is not _OPEN:  # the only state that allows it, without a lookup for each frame
            self._check_step("publish")
        record = self.table.adopt(table, index)
        self._rows += record.rows
        self._crc32c = running_crc32c(self._crc32c, record.crc32c)

    def give_back(self, table: FrameTable) -> None:
        """Let an attempt have the first of the adopted frames that are left. Call :meth:`gave_back` after the last."""
        index = self.table.first
        table.adopt(self.table, index)
        self.table.release(index + 1)

    def gave_back(self) -> None:
        """All adopted frames were given back: it is as before."""
        self._rows = self._crc32c = 0
        self.table = FrameTable(self._metadata, self.dataset, self.index)
        self._queue.begin_again(self.table)

    def restore(self, first: int, first_bytes: int, totals: Totals) -> None:
        """Seal it with these totals; its frames from ``first`` on, after ``first_bytes``, are still to be loaded."""
        self._queue.restore(first, first_bytes, totals.frames, totals.bytes)
        self._rows, self._crc32c = totals.rows, totals.crc32c
        self.loaded = first == totals.frames
        self.seal()

    def load(self, records: Records) -> None:
        """Take the records of a restored partition's frames, unless it has them or has failed meanwhile."""
        if not self.loaded and self.state is PartitionState.SEALED:
            self.table.fill(records)
            self.loaded = True

    def check(self) -> None:
        """Raise a fresh copy of the cause if the partition failed or was dropped."""
        self._queue.check()

    def seal(self) -> None:
        """End the partition: readers end cleanly after its last frame. Twice is fine."""
        self._step("seal")
        self._whole = self.so_far
        self._queue.close()

    def move_to(self, index: int, changes: Changes) -> None:
        """It is another dataset's now, with that number."""
        self.index = index
        self._changes = changes
        self.table.rename(index)

    def reopen(self) -> None:
        """Release all frames and start again; see "Producing again".

        Readers of a failed partition keep their error. The caller reopens a sealed one only without readers.
        """
        self._step("reopen")
        self.epoch += 1
        self._begin()

    def fail(self, cause: FlightShuffleError) -> None:
        """Release all frames; each reader gets a fresh copy of ``cause``. Twice is fine: the first cause stays."""
        self._step("fail")
        self._queue.fail(cause)

    def corrupt(self, cause: FlightShuffleError, epoch: int) -> None:
        """Fail the partition, sealed or not, because a frame of this epoch is lost.

        Does nothing if the partition was reopened since, or dropped.
        """
        if self.state is not PartitionState.DROPPED and self.epoch == epoch:
            self._step("corrupt")
            self._queue.fail(cause)

    def drop(self, why: str = "was dropped", remedy: str = "write it again") -> None:
        """Release all frames; readers get DatasetDropped, or why it failed before. Twice is fine."""
        self._step("drop")
        self._queue.fail(
            DatasetDropped(
                f"dataset {self.dataset!r} {why} while partition {self.index} was in use; {remedy}",
                dataset=self.dataset,
                partition=self.index,
            )
        )

    def subscribe(self, start: int = 0, stop: int | None = None) -> Subscription[Frame]:
        """A subscription from frame ``start`` on, to before ``stop``; the caller closes it. Its first read raises the
        cause, if any. Raises Released: retention has released that frame.
        """
        try:
            return self._queue.subscribe(start, stop)
        except Gone as gone:
            raise self.released(gone) from None

    @property
    def places(self) -> Places:
        if self._places is None:
            self._places = Places(self._queue, self._metadata, self.dataset)
        return self._places

    def passed(self, start: int, stop: int | None, now: float) -> None:
        """A reader without a name has received all frames from ``start`` to before ``stop``; see ``places``."""
        if self._places is not None:
            self._places.expire(now)
        self._queue.passed(start, len(self._queue) if stop is None else stop)

    def acknowledge(self, reader: str, frames: int, now: float) -> None:
        """A reader with a name has received the frames that it last asked for, up to before number ``frames``. Raises
        NotFound: it has no place; InvalidRequest: the partition, or the range that it asked for, has fewer frames.
        """
        if frames > len(self._queue):
            raise InvalidRequest.about(
                self.dataset,
                f"has {len(self._queue)} frames, and reader {reader!r} acknowledges {frames}",
                partition=self.index,
            )
        self.places.acknowledge(reader, frames, now)

    def released(self, gone: Gone) -> Released:
        """The error for a reader whose next frame retention has released."""
        return Released.about(
            self.dataset,
            f": frame {gone.item} was released after as many readers as its retention declares; write the dataset "
            "again, or create it with a retention for more readers",
            partition=self.index,
            first=gone.first,
        )

    def subscriptions(self) -> list[Subscription[Frame]]:
        return self._queue.subscriptions()

    def frames(self, start: int = 0) -> Iterator[Frame]:
        """The unreleased frames from ``start`` on, in order; see ``frames.table``."""
        return self._queue.items(start, len(self._queue))

    def unwritten(self, start: int = 0) -> Iterator[Frame]:
        """The frames from ``start`` on that are not on disk. None may be moved during the iteration."""
        return (frame for frame in self.table.in_ram(start, len(self.table)) if frame.slice is None)

    def suspects(self) -> list[int]:
        """The numbers of the frames that lie in a suspect segment; see ``storage.segments``."""
        table = self.table
        if not any(segment.suspect for segment in table.segments()):
            return []
        return [
            index
            for index, record in enumerate(table.records(), table.first)
            if record.segment is not None and record.segment.suspect
        ]

    def victims(self, *, near: bool) -> Iterator[Frame]:
        """Frames that may leave RAM, see "Victims"; with ``near`` also those at a reader's position."""
        table, length = self.table, len(self.table)
        positions = sorted({subscription.position for subscription in self._queue.subscriptions()})
        yield from table.in_ram(0, positions[0] if positions else length)
        keep = 0 if near else NEAR_FRAMES
        for start, stop in pairwise([*positions, length]):
            yield from table.in_ram(start + keep, stop, backwards=True)

    def _check_step(self, verb: str) -> PartitionState:
        after = _AFTER.get((self.state, verb))
        if after is None:
            gone = self.state is PartitionState.DROPPED
            state = f"is gone ({self.failure})" if gone else f"is {self.state}"
            raise Conflict.about(self.dataset, f"{state}: it cannot {verb} now", partition=self.index)
        return after

    def _step(self, verb: str) -> None:
        self.state = self._check_step(verb)
        self._queue.advance(*self._unseen())
        self._changes.tell()
