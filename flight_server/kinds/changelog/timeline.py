"""Timeline: when versions were committed, as far as compaction asks for it.

Clocks
    Times in RAM are of the monotonic clock, so a host's clock that is put forward or back changes no delay and no
    lease. On disk they are of the host's clock; a stored time that is still to come counts as now.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from operator import itemgetter

STEPS = 256
"""A delay is told apart in so many steps; versions of one step count as committed with the last of them."""
SLOW_SECONDS = 0.5


class Timeline:
    """The versions of about the last ``delay_seconds`` and ``patience_seconds``: so long rows that are old wait for
    more of them, as the delay, and ``SLOW_SECONDS`` at least. ``version``, ``committed``: the newest version and when
    it was committed, in seconds of the monotonic clock.
    """

    def __init__(self, delay_seconds: float, version: int, committed: float) -> None:
        self.patience_seconds = max(SLOW_SECONDS, delay_seconds)
        self._step_seconds = delay_seconds / STEPS
        self._delay_seconds = delay_seconds
        self._before = 0  # the version before those that are listed
        self._times: deque[tuple[float, int]] = deque([(committed, version)])

    @property
    def last(self) -> float:
        return self._times[-1][0]

    def add(self, version: int, committed: float) -> None:
        """A version was committed. A time before the last one counts as that."""
        committed = max(committed, self.last)
        times, oldest = self._times, committed - self._delay_seconds - self.patience_seconds
        while len(times) > 1 and times[0][0] <= oldest:
            self._before = times.popleft()[1]
        if len(times) > 1 and committed - times[-2][0] < self._step_seconds:
            times[-1] = (committed, version)
        else:
            times.append((committed, version))

    def horizon(self, now: float) -> int:
        """The newest version that is certainly ``delay_seconds`` old."""
        return self._committed_by(now - self._delay_seconds)

    def waited(self, now: float) -> int:
        """The newest version that has certainly been so old for ``patience_seconds``."""
        return self._committed_by(now - self._delay_seconds - self.patience_seconds)

    def _committed_by(self, seconds: float) -> int:
        number = bisect_right(self._times, seconds, key=itemgetter(0))
        return self._times[number - 1][1] if number else self._before


def wall_time(seconds: float) -> float:
    """A time of the monotonic clock as one of the host's clock."""
    return time.time() + (seconds - time.monotonic())


def monotonic_time(seconds: float) -> float:
    """A time of the host's clock, before or after now, as one of the monotonic clock."""
    return time.monotonic() + (seconds - time.time())


def past_time(seconds: float) -> float:
    """The same of an event in the past: at most now."""
    return min(monotonic_time(seconds), time.monotonic())
