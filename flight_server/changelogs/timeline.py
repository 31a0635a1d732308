"""Timeline: when versions were committed, as far as ``delay_seconds`` asks for it."""

from __future__ import annotations

from collections import deque

STEPS = 256
"""A delay is told apart in so many steps; versions of one step count as committed with the last of them."""


class Timeline:
    """The versions of about the last ``delay_seconds``.

    Args:
        version, time: the newest version and when it was committed, in seconds since the epoch.
    """

    def __init__(self, delay_seconds: float, version: int, time: float) -> None:
        self._step_seconds = delay_seconds / STEPS
        self._delay_seconds = delay_seconds
        self._horizon = 0
        self._times: deque[tuple[float, int]] = deque([(time, version)])

    @property
    def last(self) -> float:
        """When the newest version was committed."""
        return self._times[-1][0]

    def add(self, version: int, time: float) -> None:
        """A version was committed. A clock that goes back counts as one that stands still."""
        time = max(time, self.last)
        times = self._times
        if len(times) > 1 and time - times[-2][0] < self._step_seconds:
            times[-1] = (time, version)
        else:
            times.append((time, version))

    def horizon(self, now: float) -> int:
        """The newest version that is certainly ``delay_seconds`` old."""
        due = now - self._delay_seconds
        while len(self._times) > 1 and self._times[0][0] <= due:
            self._horizon = self._times.popleft()[1]
        if self._times[0][0] <= due:
            self._horizon = self._times[0][1]
        return self._horizon
