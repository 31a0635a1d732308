"""How late the event loop runs: the time from when a timer was due to when the loop ran it.

While the loop is late, every stream of the server waits. The numbers are those of a Prometheus histogram.
"""

from __future__ import annotations

import asyncio

from .background import seconds_to_tick

BOUNDS_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class LoopLag:
    """The lags of one loop since the start."""

    def __init__(self) -> None:
        self.total_seconds = 0.0
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)

    async def look(self) -> None:
        """Wait for the next tick, and note how much later this went on: a duty of the server."""
        loop = asyncio.get_running_loop()
        seconds = seconds_to_tick()
        due = loop.time() + seconds
        await asyncio.sleep(seconds)
        self.note(loop.time() - due)

    def note(self, seconds: float) -> None:
        seconds = max(0.0, seconds)
        self.total_seconds += seconds
        self._counts[sum(seconds > bound for bound in BOUNDS_SECONDS)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """For each bound, as text, how many lags were at most as long; the last one has all."""
        names = [*map(str, BOUNDS_SECONDS), "+Inf"]
        return [(name, float(sum(self._counts[: index + 1]))) for index, name in enumerate(names)]
