"""Places: which frames of a partition each reader has passed, for retention by readers.

Guarantee: a frame can be read again until enough readers have passed it, each counted once.

    who reads                      what counts as passed                                  when
    =============================  =====================================================  =========================
    a reader with a name           the frames from where it began up to what it           at the action
    (``reader`` in its ticket)     acknowledges; a resume ``from=k`` acknowledges k       ``acknowledge``, or resume
    a reader without a name        every frame that the stream gave                       at the stream's clean end
    a stream that broke, no name   nothing                                                never
    a place that was given back    nothing; but all, if the reader has every frame of a   ``resume_seconds`` after
                                   sealed partition, or of the range that it asked for    its connection ended

Taking over
    When a second connection uses a name, the place goes on there, and the first connection gets an error.

Giving back
    A named reader that does not return within ``resume_seconds`` loses its place: unreleased frames no longer count as
    passed by it, so another reader can take its turn. Without one the frames stay until the lease ends. Due places are
    given back only when a named reader begins or acknowledges, or another one ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flight_server.concurrency import BroadcastQueue, Subscription
from flight_server.protocol import Conflict, NotFound


@dataclass(slots=True)
class _Place:
    begin: int
    stop: int | None
    acknowledged: int
    subscription: Subscription[Any] | None
    until: float = 0.0


class Places:
    """The named readers of one partition. Times are seconds of one monotonic clock."""

    def __init__(self, queue: BroadcastQueue[Any]) -> None:
        self._queue = queue
        self._by_reader: dict[str, _Place] = {}
        self._left: dict[str, _Place] = {}  # without a connection, in the order of their ends

    def take(self, reader: str, subscription: Subscription[Any], now: float) -> None:
        """A connection of the reader begins. A reader that has a place acknowledges the frames before its start."""
        self.expire(now)
        place = self._by_reader.get(reader)
        if place is None:
            start = subscription.start
            self._by_reader[reader] = _Place(start, subscription.stop, start, subscription)
            return
        self._left.pop(reader, None)
        before, place.subscription = place.subscription, subscription
        if before is not None:
            before.end(Conflict(f"reader {reader!r} has gone on in another connection"))
        self._advance(place, subscription.start)

    def leave(self, reader: str, subscription: Subscription[Any], until: float) -> None:
        """The connection has ended; keep the place until then. No effect if another has taken it over."""
        place = self._by_reader.get(reader)
        if place is not None and place.subscription is subscription:
            place.subscription = None
            place.until = until
            self._left[reader] = place

    def acknowledge(self, reader: str, frames: int, now: float) -> None:
        """The reader has received the frames before ``frames``. Raises NotFound if it has no place."""
        self.expire(now)
        place = self._by_reader.get(reader)
        if place is None:
            raise NotFound(f"reader {reader!r} has no place here, or has it no longer: read again")
        self._advance(place, frames)

    def expire(self, now: float) -> None:
        """Give back the places whose ``until`` has passed."""
        for reader, place in list(self._left.items()):
            if place.until > now:
                break
            del self._left[reader], self._by_reader[reader]
            stop = len(self._queue) if place.stop is None and self._queue.ended else place.stop
            if stop is None or place.acknowledged < stop:
                self._queue.passed(place.begin, place.acknowledged, -1)

    def _advance(self, place: _Place, frames: int) -> None:
        if frames > place.acknowledged:
            before, place.acknowledged = place.acknowledged, frames
            self._queue.passed(before, frames)
