"""Places: what each reader of a partition is known to have, so that retention by readers counts it once.

Guarantee: a frame counts as passed by a reader when the reader has said that it has it, or, of a reader without
a name, when its whole stream has ended cleanly. Until enough readers have passed it, it can be read again.

    who reads                      what counts as passed                                  when
    =============================  =====================================================  =========================
    a reader with a name           the frames from where it began up to what it           at the action
    (``reader`` in its ticket)     acknowledges; a resume ``from=k`` acknowledges k       ``acknowledge``, or resume
    a reader without a name        every frame that the stream gave                       at the stream's clean end
    a stream that broke, no name   nothing                                                never
    a place that was given back    nothing: other readers take its turn; but all, if the  ``resume_seconds`` after
                                   reader has every frame of a sealed partition           its connection ended

Taking over
    A name belongs to one reader. When it comes again its place goes on, and the connection that had the place
    is told so by an error.

Giving back
    A reader with a name that has not come again ``resume_seconds`` after its connection ended loses its place: what
    it had passed of the frames that are still there counts no more, so that another reader can take its turn. A
    reader that has acknowledged every frame of a sealed partition has had its turn, and counts for good.
    Frames that were released by then stay released. Without other readers the frames stay until the lease ends.
    Places are given back when the next reader comes, acknowledges or ends, and have no effect before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flight_server.concurrency import BroadcastQueue, Subscription
from flight_server.protocol import Conflict, NotFound


@dataclass(slots=True)
class _Place:
    begin: int
    acknowledged: int
    subscription: Subscription[Any] | None
    until: float = 0.0


class Places:
    """Of one partition's readers. Times are of one monotonic clock, in seconds.

    Args:
        queue: of the partition's frames; it counts the ranges that readers have passed.
    """

    def __init__(self, queue: BroadcastQueue[Any]) -> None:
        self._queue = queue
        self._by_reader: dict[str, _Place] = {}
        self._left: dict[str, _Place] = {}  # those whose connection has ended, in that order

    def take(self, reader: str, subscription: Subscription[Any], now: float) -> None:
        """The reader has come, and has everything before the subscription's start if it was here before."""
        self.expire(now)
        place = self._by_reader.get(reader)
        if place is None:
            start = subscription.start
            self._by_reader[reader] = _Place(start, start, subscription)
            return
        self._left.pop(reader, None)
        before, place.subscription = place.subscription, subscription
        if before is not None:
            before.end(Conflict(f"reader {reader!r} has gone on in another connection"))
        self._advance(place, subscription.start)

    def leave(self, reader: str, subscription: Subscription[Any], until: float) -> None:
        """The connection has ended; the place is kept until then. No effect if another one has taken it over."""
        place = self._by_reader.get(reader)
        if place is not None and place.subscription is subscription:
            place.subscription = None
            place.until = until
            self._left[reader] = place

    def acknowledge(self, reader: str, frames: int, now: float) -> None:
        """The reader has the frames before ``frames``.

        Raises:
            NotFound: it has no place, or has it no longer.
        """
        self.expire(now)
        place = self._by_reader.get(reader)
        if place is None:
            raise NotFound(f"reader {reader!r} has no place here, or has it no longer: read again")
        self._advance(place, frames)

    def expire(self, now: float) -> None:
        """Give back the places whose time has passed."""
        for reader, place in list(self._left.items()):
            if place.until > now:
                break
            del self._left[reader], self._by_reader[reader]
            if not self._queue.ended or place.acknowledged < len(self._queue):
                self._queue.passed(place.begin, place.acknowledged, -1)

    def _advance(self, place: _Place, frames: int) -> None:
        if frames > place.acknowledged:
            before, place.acknowledged = place.acknowledged, frames
            self._queue.passed(before, frames)
