"""Eviction: ends readers that take nothing while other readers wait for the room that they hold.

A reader whose write lasts for ``STALL_SECONDS`` loses its bytes read ahead and has to prove itself again (see
``accounts``). When a queue of readers has got no room for ``PROGRESS_SECONDS``, each look ends readers that have
stalled, the longest first, until their room is enough for all that wait. A write has stalled after
``Delivery.stall_seconds`` and, of a reader that has taken a message before, after the time in which one of
``STEADY_BYTES_PER_SECOND`` takes the message, at most ``STEADY_STALLS`` times as long: gRPC shows no part of a message,
so only by this time a steady slow reader differs from one that takes nothing. A write whose partition has failed or was
dropped ends at the next look.

Newcomers
    A reader that has not taken even its first message is ended earlier, for readers that are the first of their
    connection: after ``FIRST_SECONDS`` or, if the part ``unproven`` is large, after the time in which good readers that
    share a link of 1 Gbit/s would have taken all of that part. So each connection of a crowd gets its chance soon, and
    of 1,000 paused readers on 50 connections few are ended.

Ended generations
    A generation without a name is kept for its readers alone, on disk, too. While the disk is full for others, each
    look ends all of its readers that have stalled for ``Delivery.stall_seconds``.
"""

from __future__ import annotations

import asyncio
import time

from flight_server.concurrency import seconds_to_tick
from flight_server.memory import STALL_SECONDS, Budget, MemoryPool
from flight_server.tiering import Spiller

from .delivery import Delivery, Write

PROGRESS_SECONDS = 0.5
NEWCOMERS_SECONDS = 0.02
"""The time between two looks for newcomers, while any waits; without any it is ``FIRST_SECONDS`` while messages are
being written, which alone may hold their room, and else a tick."""
STEADY_BYTES_PER_SECOND = 100 << 10
STEADY_STALLS = 2
"""Readers that take nothing are spared as long, and others wait for their room."""
FIRST_SECONDS = 0.1
FIRST_BYTES_PER_SECOND = 100 << 20
FULL_SECONDS = 2.0
"""A write is tried again more often than this while anything waits for the disk."""


class Eviction:
    """The looks at the writes of one ``Delivery``."""

    def __init__(self, budget: Budget, delivery: Delivery, spiller: Spiller) -> None:
        self._spiller = spiller
        self._unproven = budget.unproven
        self._delivery = delivery
        # Of each queue of readers: how many requests it had granted when that last changed, and when it did.
        queues = (budget.sends, budget.unproven, budget.further, budget.answers)
        self._progress = dict.fromkeys(queues, (0, 0.0))
        unproven_bytes = budget.unproven.limit_bytes or 0
        self._first_seconds = min(
            delivery.stall_seconds, max(FIRST_SECONDS, unproven_bytes / FIRST_BYTES_PER_SECOND)
        )

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
                self._end_longest(pool, now, self._delivery.stall_seconds)

    async def watch_newcomers(self) -> None:
        """Look once; while none waits, longer. ``server`` calls this each ``NEWCOMERS_SECONDS``."""
        self.look_for_newcomers()
        if not self._unproven.waiting:
            busy = len(self._delivery.writes) > 0
            await asyncio.sleep(FIRST_SECONDS - NEWCOMERS_SECONDS if busy else seconds_to_tick())

    def look_for_newcomers(self) -> None:
        """See "Newcomers"."""
        if self._unproven.waiting:
            now = asyncio.get_running_loop().time()
            self._end_longest(self._unproven, now, self._first_seconds, begun=False)

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

    def _end_longest(self, pool: MemoryPool, now: float, seconds: float, *, begun: bool = True) -> None:
        """End readers that stalled so long until ``pool`` has room; without ``begun`` only ones without a message."""
        missing_bytes = pool.wanted_bytes
        for timeout, write in self._delivery.writes.items():
            if missing_bytes <= 0 or now - write.since < seconds:
                return
            held_bytes = write.held_of(pool)
            if not held_bytes or (write.reader.pace.begun and (not begun or self._may_be_steady(write, now))):
                continue
            missing_bytes -= held_bytes
            if timeout.when() is None:
                timeout.reschedule(now)

    def _may_be_steady(self, write: Write, now: float) -> bool:
        """Whether a steady reader may still be taking the message."""
        steady_seconds = write.message_bytes / STEADY_BYTES_PER_SECOND
        return now - write.since < min(steady_seconds, STEADY_STALLS * self._delivery.stall_seconds)
