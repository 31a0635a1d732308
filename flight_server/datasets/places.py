"""Places: which frames of a partition each reader has passed, for retention by readers.

Guarantee: a frame can be read again until enough readers have passed it. A reader with a name counts once for each
frame, also if it repeats, and in any order of ranges, for as long as the partition lives.

    who reads                      what counts as passed                                  when
    =============================  =====================================================  =========================
    a reader with a name           the frames from where it began up to what it           at the action
    (``reader`` in its ticket)     acknowledges; a resume ``from=k`` acknowledges k       ``acknowledge``, or resume
    a reader without a name        every frame that the stream gave                       at the stream's clean end
    a stream that broke, no name   nothing                                                never
    a place that was given back    nothing; but all, if the reader has every frame of a   ``resume_seconds`` after
                                   sealed partition, or of the range that it asked for    its connection ended

    A reader without a name cannot be told from another one: each of its streams counts as a reader. So a task that may
    be tried again needs a name.

Resuming
    A connection with the name, the end (``until``) and a start within the range of the one before is a resume, if the
    frames before its start are there. Every other connection begins another range; acknowledged frames of the earlier
    range stay passed.

Taking over
    When a second connection uses a name, the place goes on there, and the first connection gets an error.

Giving back
    A named reader that does not return within ``resume_seconds`` loses its place: unreleased frames of the range that
    it has not completed no longer count as passed by it, so another reader can take its turn. Without one the frames
    stay until the lease ends. Due places are given back only when a named reader begins or acknowledges, or another one
    ends. The frames of ranges that it has completed stay passed.

Memory
    A name takes ``PLACE_BYTES`` of ``metadata``, and each range that it has passed and that is not released yet
    ``RANGE_BYTES``. A name without any, or with only released ones, is forgotten when its place is given back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flight_server.concurrency import BroadcastQueue, Subscription
from flight_server.frames import NumberRanges
from flight_server.memory import Metadata, Reservation
from flight_server.protocol import Conflict, InvalidRequest, NotFound

PLACE_BYTES = 512
RANGE_BYTES = 128


@dataclass(slots=True)
class _Place:
    room: Reservation
    begin: int
    stop: int | None
    acknowledged: int
    subscription: Subscription[Any] | None
    until: float = 0.0
    passed: NumberRanges = field(default_factory=NumberRanges)
    """All that counts."""
    counted: NumberRanges = field(default_factory=NumberRanges)
    """Those of ``passed`` that count since ``begin``."""


class Places:
    """The named readers of one partition. Times are seconds of one monotonic clock."""

    def __init__(
        self, queue: BroadcastQueue[Any], metadata: Metadata | None = None, dataset: str = ""
    ) -> None:
        self._queue = queue
        self._metadata = metadata or Metadata()
        self._dataset = dataset
        self._by_reader: dict[str, _Place] = {}
        self._left: dict[str, _Place] = {}  # without a connection, in the order of their ends

    def take(self, reader: str, subscription: Subscription[Any], now: float) -> None:
        """A connection of the reader begins. One that resumes acknowledges the frames before its start.

        Raises OutOfBudget if ``metadata`` has no room.
        """
        self.expire(now)
        place = self._by_reader.get(reader)
        start = subscription.start
        if place is None:
            room = self._metadata.reserve(
                PLACE_BYTES + RANGE_BYTES, self._what(reader), dataset=self._dataset
            )
            self._by_reader[reader] = _Place(room, start, subscription.stop, start, subscription)
            return
        resumes = subscription.stop == place.stop and place.begin < start <= len(self._queue)
        if not resumes:
            self._trim(place)
            size_bytes = PLACE_BYTES + RANGE_BYTES * (len(place.passed.ranges) + 1)
            if size_bytes > place.room.size_bytes:
                added = size_bytes - place.room.size_bytes
                self._metadata.grow(place.room, added, self._what(reader), dataset=self._dataset)
        self._left.pop(reader, None)
        before, place.subscription = place.subscription, subscription
        if before is not None:
            before.end(Conflict(f"reader {reader!r} has gone on in another connection"))
        if resumes:
            self._advance(place, start)
        else:
            place.begin, place.stop, place.acknowledged = start, subscription.stop, start
            place.counted = NumberRanges()

    def leave(self, reader: str, subscription: Subscription[Any], until: float) -> None:
        """The connection has ended; keep the place until then. No effect if another has taken it over."""
        place = self._by_reader.get(reader)
        if place is not None and place.subscription is subscription:
            place.subscription = None
            place.until = until
            self._left[reader] = place

    def acknowledge(self, reader: str, frames: int, now: float) -> None:
        """The reader has received the frames of its range before ``frames``. Raises NotFound: it has no place;
        InvalidRequest: its range ends before ``frames``: the reader speaks of an earlier range, and comes too late.
        """
        self.expire(now)
        place = self._by_reader.get(reader)
        if place is None or (place.subscription is None and reader not in self._left):
            raise NotFound(f"reader {reader!r} has no place here, or has it no longer: read again")
        if place.stop is not None and frames > place.stop:
            raise InvalidRequest(
                f"reader {reader!r} acknowledges {frames}, and has asked for the frames before {place.stop} of dataset "
                f"{self._dataset!r}: acknowledge a range before the next one is read"
            )
        self._advance(place, frames)

    def expire(self, now: float) -> None:
        """Give back the places whose ``until`` has passed."""
        for reader, place in list(self._left.items()):
            if place.until > now:
                break
            del self._left[reader]
            stop = len(self._queue) if place.stop is None and self._queue.ended else place.stop
            if stop is None or place.acknowledged < stop:
                for begin, end in place.counted.ranges:
                    self._queue.passed(begin, end, -1)
                    place.passed.remove(begin, end)
            place.counted = NumberRanges()
            self._trim(place)
            if not place.passed.ranges:
                del self._by_reader[reader]

    def _advance(self, place: _Place, frames: int) -> None:
        if frames <= place.acknowledged:
            return
        begin, place.acknowledged = place.acknowledged, frames
        for each in place.passed.gaps(begin, frames):
            place.passed.add(*each)
            place.counted.add(*each)
            self._queue.passed(*each)

    def _trim(self, place: _Place) -> None:
        """Forget what is released, which no reader can repeat."""
        place.passed.remove(0, self._queue.first)

    def _what(self, reader: str) -> str:
        return f"the place of reader {reader!r} in dataset {self._dataset!r}"
