"""Ticks: moments that all periodic duties share, so that an idle process wakes for all of them at once.

A wake-up of an idle server takes about 0.1 ms of CPU time, and what a duty does then mostly less. A duty that looks
more often than at each tick does so only while it has something to do.
"""

from __future__ import annotations

import asyncio

TICK_SECONDS = 0.25


def seconds_to_tick(every_seconds: float = TICK_SECONDS) -> float:
    """From now to the next multiple of ``every_seconds``, a multiple of ``TICK_SECONDS``, on the loop's clock; to the
    one after it if that is so near that a timer may have come early.
    """
    left = every_seconds - asyncio.get_running_loop().time() % every_seconds
    return left if left > 0.1 * TICK_SECONDS else left + every_seconds
