"""Eviction: ends the readers that take nothing while others wait for the room that they hold.

A reader whose write has lasted for ``STALL_SECONDS`` has to prove itself again, and loses what was read ahead for
it (see ``budget``). Where readers wait and none of them has got room for ``PROGRESS_SECONDS``, the one that has
stalled for longest is ended, if that is ``Delivery.stall_seconds``: one at each look.
"""

from __future__ import annotations

import asyncio

from flight_server.memory import STALL_SECONDS, Budget, MemoryPool

from .delivery import Delivery

PROGRESS_SECONDS = 0.5


class Eviction:
    """See the module's text."""

    def __init__(self, budget: Budget, delivery: Delivery) -> None:
        self._sends = budget.sends
        self._delivery = delivery
        # For each queue of readers: what it had granted when that last changed, and when that was.
        self._progress = dict.fromkeys((budget.sends, budget.unproven), (0, 0.0))

    def look(self) -> None:
        """Look after the writes that last. Called twice a second."""
        now = asyncio.get_running_loop().time()
        for timeout, write in self._delivery.writes.items():
            if now - write.since >= STALL_SECONDS:
                write.reader.pace.stall()
            if write.partition is not None and write.partition.failure is not None and timeout.when() is None:
                timeout.reschedule(now)
        patience_seconds = min(PROGRESS_SECONDS, self._delivery.stall_seconds)
        for pool, (granted, since) in self._progress.items():
            if pool.granted != granted or not pool.waiting:
                self._progress[pool] = (pool.granted, now)
            elif now - since >= patience_seconds:
                self._end_longest(pool, now)

    def _end_longest(self, pool: MemoryPool, now: float) -> None:
        """End the reader that has stalled for longest of those that hold room of the pool."""
        for timeout, write in self._delivery.writes.items():
            if now - write.since < self._delivery.stall_seconds:
                return
            room = write.room
            if room is not None and pool in (room.pool, self._sends) and timeout.when() is None:
                timeout.reschedule(now)
                return
