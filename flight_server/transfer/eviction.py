"""Eviction: ends readers that take nothing while other readers wait for the room that they hold.

A reader whose write lasts for ``STALL_SECONDS`` loses what was read ahead for it and has to prove itself again (see
``accounts``). When a queue of readers has got no room for ``PROGRESS_SECONDS``, each look ends the one that has stalled
for longest, if for ``Delivery.stall_seconds``. A write whose partition has failed or was dropped ends at the next look.

Ended generations
    A generation without a name is kept for its readers alone, on disk, too. While the disk is full for others, each
    look ends all of its readers that have stalled for ``Delivery.stall_seconds``.
"""

from __future__ import annotations

import asyncio
import time

from flight_server.memory import STALL_SECONDS, Budget, MemoryPool
from flight_server.tiering import Spiller

from .delivery import Delivery

PROGRESS_SECONDS = 0.5
FULL_SECONDS = 2.0
"""A write is tried again more often than this while anything waits for the disk."""


class Eviction:
    """See the module's text."""

    def __init__(self, budget: Budget, delivery: Delivery, spiller: Spiller) -> None:
        self._spiller = spiller
        self._sends, self._answers = budget.sends, budget.answers
        self._delivery = delivery
        # Of each queue of readers: how many requests it had granted when that last changed, and when it did.
        self._progress = dict.fromkeys((budget.sends, budget.unproven, budget.answers), (0, 0.0))

    def look(self) -> None:
        """Check every write that lasts. ``server`` calls this twice a second."""
        now = asyncio.get_running_loop().time()
        for timeout, write in self._delivery.writes.items():
            if now - write.since >= STALL_SECONDS:
                write.reader.pace.stall()
            if write.partition is not None and write.partition.failure is not None and timeout.when() is None:
                timeout.reschedule(now)
        self._end_kept_on_a_full_disk(now)
        patience_seconds = min(PROGRESS_SECONDS, self._delivery.stall_seconds)
        for pool, (granted, since) in self._progress.items():
            if pool.granted != granted or not pool.waiting:
                self._progress[pool] = (pool.granted, now)
            elif now - since >= patience_seconds:
                self._end_longest(pool, now)

    def _end_kept_on_a_full_disk(self, now: float) -> None:
        full_at = self._spiller.full_at
        if full_at is None or time.monotonic() - full_at > FULL_SECONDS:
            return
        for timeout, write in self._delivery.writes.items():
            if now - write.since < self._delivery.stall_seconds:
                return
            dataset = self._delivery.dataset_of(write.reader)
            if dataset is not None and dataset.ended and timeout.when() is None:
                timeout.reschedule(now)

    def _end_longest(self, pool: MemoryPool, now: float) -> None:
        for timeout, write in self._delivery.writes.items():
            if now - write.since < self._delivery.stall_seconds:
                return
            room = write.room
            if room is not None and self._helps(pool, room.pool) and timeout.when() is None:
                timeout.reschedule(now)
                return

    def _helps(self, waiting: MemoryPool, held: MemoryPool) -> bool:
        """Whether what is released of ``held`` can be what the queue of ``waiting`` lacks."""
        lacks_all = waiting is self._sends or (waiting is self._answers and not waiting.used_bytes)
        return lacks_all or held in (waiting, self._answers)
