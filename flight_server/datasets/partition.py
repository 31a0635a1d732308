"""Partition: the state machine of one partition, and which of its frames can leave RAM.

States and verbs, all of them:

    state     publish   seal      fail      drop      reopen
    OPEN      OPEN      SEALED    FAILED    DROPPED   error
    SEALED    error     SEALED    error     DROPPED   OPEN
    FAILED    error     error     FAILED    DROPPED   OPEN
    DROPPED   error     error     DROPPED   DROPPED   error

An error is a :class:`~flight_server.protocol.Conflict`. FAILED and DROPPED hold no frames: readers,
present and later, get the cause as an error of their own.

Who holds what
    The partition holds its queue and the table of its frames; the table holds their bytes and files. So
    when the partition goes (its dataset was dropped or replaced and its last reader has left) bytes,
    reservations and files go with it, and nobody has to be told.

Producing again
    What comes from a source can be had again: after a failure, or when its frames were let go instead
    of spilled. ``reopen`` starts again from frame 0, under the same generation; whoever publishes then
    answers for it that the same frames come again, in ``pulls``. The totals of a partition that was
    sealed once stay known. ``epoch`` tells one opening from the next: a task that began in an earlier one
    and has awaited since compares it before it publishes, seals, fails or corrupts.

Victims
    :meth:`Partition.victims` says which frames can leave RAM, coldest first: those that no attached
    reader will ask for (behind all of them, or nobody is attached), oldest first; then those that
    only a reader far behind will ask for, the farthest ahead of it first. What is within
    ``NEAR_FRAMES`` of a reader's position comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from flight_server.concurrency import BroadcastQueue, Changes, Gone, Subscription
from flight_server.frames import Frame, FrameTable, Record, Records
from flight_server.memory import Metadata
from flight_server.protocol import Conflict, DatasetDropped, FlightShuffleError, InvalidRequest, Released
from flight_server.protocol.checksums import running_crc32c

from .places import Places

NEAR_FRAMES = 2


class PartitionState(StrEnum):
    """See the table above."""

    OPEN = "open"
    SEALED = "sealed"
    FAILED = "failed"
    DROPPED = "dropped"


_OPEN, _SEALED, _FAILED, _DROPPED = PartitionState

_AFTER: dict[tuple[PartitionState, str], PartitionState] = {
    (_OPEN, "publish"): _OPEN,
    (_OPEN, "seal"): _SEALED,
    (_OPEN, "fail"): _FAILED,
    (_OPEN, "drop"): _DROPPED,
    (_SEALED, "seal"): _SEALED,
    (_SEALED, "drop"): _DROPPED,
    (_FAILED, "fail"): _FAILED,
    (_FAILED, "drop"): _DROPPED,
    (_DROPPED, "fail"): _DROPPED,
    (_DROPPED, "drop"): _DROPPED,
    (_SEALED, "reopen"): _OPEN,
    (_FAILED, "reopen"): _OPEN,
}


@dataclass(frozen=True, slots=True)
class Totals:
    """What a whole partition is, for the trailers of each read of it."""

    rows: int
    frames: int
    bytes: int
    crc32c: int


class Partition:
    """See the module's text.

    Args:
        dataset: its dataset's name, for errors.
        index: its place in the dataset.
        retain_readers: see :class:`~flight_server.concurrency.BroadcastQueue`.
        changes: told of every verb.
        metadata: where the records of its frames are counted.
    """

    __slots__ = (
        "_changes",
        "_crc32c",
        "_metadata",
        "_places",
        "_queue",
        "_retain_readers",
        "_rows",
        "_table",
        "_whole",
        "dataset",
        "epoch",
        "index",
        "state",
        "writing",
    )

    def __init__(
        self,
        dataset: str,
        index: int,
        retain_readers: int | None = None,
        changes: Changes | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        self.dataset = dataset
        self.index = index
        self.state = PartitionState.OPEN
        self.writing = False  # a producer of a one-producer kind has this partition
        self.epoch = 0  # how often it was reopened
        self._retain_readers = retain_readers
        self._metadata = metadata or Metadata()
        self._begin()
        self._changes = Changes() if changes is None else changes
        self._whole: Totals | None = None

    def _begin(self) -> None:
        self._table = FrameTable(self._metadata, self.dataset, self.index)
        self._queue: BroadcastQueue[Frame] = BroadcastQueue(self._retain_readers, self._table)
        self._places: Places | None = None
        self._rows = 0
        self._crc32c = 0

    @property
    def totals(self) -> Totals:
        """Of the whole partition if it was ever sealed, else of what was published so far."""
        return self._whole or self.so_far

    @property
    def so_far(self) -> Totals:
        """Of what was published since the partition was last opened."""
        return Totals(self._rows, len(self._queue), self._queue.total_bytes, self._crc32c)

    @property
    def failure(self) -> BaseException | None:
        return self._queue.failure

    @property
    def frames_left(self) -> int:
        """How many frames retention has not let go."""
        return len(self._queue) - self._queue.first

    @property
    def resident_bytes(self) -> int:
        """Of the frames that are there, those in RAM; what readers have in RAM besides is not counted."""
        return self._table.resident_bytes

    @property
    def table(self) -> Records:
        """What is known of the frames without their bytes."""
        return self._table

    def publish(self, frame: Frame) -> None:
        """Append a frame; readers that wait get it at once. Never waits.

        Raises:
            Conflict: the partition is not open.
            OutOfBudget: there is no room for what has to be kept of the frame for ever.
        """
        if self.state is not _OPEN:  # the table's only row for this verb, without a look at it for each frame
            self._step("publish")
        self._queue.publish(frame, frame.size_bytes)
        self._changes.tell()
        self._rows += frame.rows
        self._crc32c = running_crc32c(self._crc32c, frame.crc32c)

    def adopt(self, table: FrameTable, index: int) -> None:
        """Publish a frame of an attempt, which is about to release it.

        Raises:
            Conflict: the partition is not open.
        """
        if self.state is not _OPEN:  # the table's only row for this verb, without a look at it for each frame
            self._step("publish")
        record = self._table.adopt(table, index)
        self._queue.advance(record.size_bytes)
        self._changes.tell()
        self._rows += record.rows
        self._crc32c = running_crc32c(self._crc32c, record.crc32c)

    def restore(self, records: Iterable[Record], first: int, first_bytes: int, totals: Totals) -> None:
        """Take what is left of the frames of a partition of these totals, and seal it.

        Args:
            records: of the frames from ``first`` on.
            first_bytes: of the frames before.

        Raises:
            Conflict: the partition is not open.
            OutOfBudget: there is no room for the records.
        """
        self._queue.skip(first, first_bytes)
        for record in records:
            self._table.restore(record)
            self._queue.advance(record.size_bytes)
        self._rows, self._crc32c = totals.rows, totals.crc32c
        self.seal()

    def check(self) -> None:
        """Do nothing while the partition can be read.

        Raises:
            FlightShuffleError: it has failed or was dropped: a fresh copy of the cause.
        """
        self._queue.check()

    def seal(self) -> None:
        """The last frame was published: readers end cleanly after it. Twice is fine.

        Raises:
            Conflict: the partition has failed or was dropped.
        """
        self._step("seal")
        self._whole = self.so_far
        self._queue.close()

    def reopen(self) -> None:
        """Let all frames go and start again from the first; see "Producing again".

        Readers of a failed partition keep their error; a sealed one should have no readers.

        Raises:
            Conflict: the partition is open or was dropped.
        """
        self._step("reopen")
        self.epoch += 1
        self._begin()

    def fail(self, cause: FlightShuffleError) -> None:
        """Let all frames go; each reader gets a fresh copy of ``cause``. Twice is fine.

        Raises:
            Conflict: the partition is sealed; what is complete cannot fail any more.
        """
        self._step("fail")
        self._let_all_go(cause)

    def corrupt(self, cause: FlightShuffleError, epoch: int) -> None:
        """A frame of this epoch is lost: no reader can read the partition whole any more, sealed or not.

        Does nothing once the partition was reopened: the frame was not one of those that it has now.
        """
        if self.state is not PartitionState.DROPPED and self.epoch == epoch:
            self.state = PartitionState.FAILED
            self._let_all_go(cause)
            self._changes.tell()

    def drop(self, why: str = "dropped") -> None:
        """Let all frames go; readers get :class:`DatasetDropped`, which says ``why``. Twice is fine."""
        self._step("drop")
        self._let_all_go(
            DatasetDropped(
                f"dataset {self.dataset!r} was {why} while partition {self.index} was in use; write it again",
                dataset=self.dataset,
                partition=self.index,
            )
        )

    def _let_all_go(self, cause: FlightShuffleError) -> None:
        self._queue.fail(cause)

    def subscribe(self, start: int = 0) -> Subscription[Frame]:
        """A reader's place from frame ``start`` on; its owner closes it.

        Raises:
            Released: retention has let that frame go.
            FlightShuffleError: the partition has failed or was dropped: a fresh copy of the cause.
        """
        try:
            return self._queue.subscribe(start)
        except Gone as gone:
            raise self.released(gone) from None

    @property
    def places(self) -> Places:
        """Of readers that have a name; made when the first one comes."""
        if self._places is None:
            self._places = Places(self._queue)
        return self._places

    def passed(self, start: int, now: float) -> None:
        """A reader without a name has had all frames from ``start`` on; see ``places``."""
        if self._places is not None:
            self._places.expire(now)
        self._queue.passed(start, len(self._queue))

    def acknowledge(self, reader: str, frames: int, now: float) -> None:
        """A reader with a name has the first ``frames`` frames.

        Raises:
            NotFound: it has no place.
            InvalidRequest: there are not so many frames.
        """
        if frames > len(self._queue):
            raise InvalidRequest(
                f"dataset {self.dataset!r} partition {self.index} has {len(self._queue)} frames, and reader "
                f"{reader!r} acknowledges {frames}",
                dataset=self.dataset,
                partition=self.index,
            )
        self.places.acknowledge(reader, frames, now)

    def released(self, gone: Gone) -> Released:
        """What a reader is told whose next frame retention has let go."""
        return Released(
            f"dataset {self.dataset!r} partition {self.index}: frame {gone.wanted} was let go after "
            "as many readers as its retention declares; write the dataset again, or create it with "
            "a retention for more readers",
            dataset=self.dataset,
            partition=self.index,
            first=gone.first,
        )

    def subscriptions(self) -> list[Subscription[Frame]]:
        return self._queue.subscriptions()

    def frames(self, start: int = 0) -> Iterator[Frame]:
        """The frames from ``start`` on that are there, in order. Each is an object only while it is looked at."""
        return self._queue.items(start, len(self._queue))

    def frame(self, index: int) -> Frame:
        """The frame of that number, which must be there."""
        return self._table.item(index)

    def unwritten(self, start: int = 0) -> Iterator[Frame]:
        """Those of them that are not on disk. None may be moved meanwhile."""
        return (frame for frame in self._table.in_ram(start, len(self._queue)) if frame.slice is None)

    def suspects(self) -> list[int]:
        """Which of them lie in a suspect segment; see ``spill``."""
        table = self._table
        if not any(segment.suspect for segment in table.segments()):
            return []
        return [
            index
            for index, record in enumerate(table.records(), table.first)
            if record.segment is not None and record.segment.suspect
        ]

    def victims(self, *, near: bool) -> Iterator[Frame]:
        """Frames in RAM that may leave it, coldest first; with ``near`` also those a reader is at."""
        table, length = self._table, len(self._queue)
        positions = sorted({subscription.position for subscription in self._queue.subscriptions()})
        yield from table.in_ram(0, positions[0] if positions else length)
        keep = 0 if near else NEAR_FRAMES
        for start, stop in pairwise([*positions, length]):
            yield from table.in_ram_backwards(start + keep, stop)

    def _step(self, verb: str) -> None:
        after = _AFTER.get((self.state, verb))
        if after is None:
            raise Conflict(
                f"dataset {self.dataset!r} partition {self.index} is {self.state}: it cannot {verb} now",
                dataset=self.dataset,
                partition=self.index,
            )
        self.state = after
        self._changes.tell()
