"""NumberRanges: a set of ascending numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class NumberRanges:
    """Kept as the places where ranges of neighbours begin and end: its size grows with the gaps, and finding the next
    number in either direction passes over no removed ones.
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def append(self, number: int) -> None:
        """Add a number higher than all before."""
        if self._stops and self._stops[-1] == number:
            self._stops[-1] = number + 1
        else:
            self._starts.append(number)
            self._stops.append(number + 1)

    def remove(self, number: int) -> None:
        """Remove a number that is in the set."""
        starts, stops = self._starts, self._stops
        at = bisect_right(starts, number) - 1
        if starts[at] + 1 == stops[at]:
            del starts[at], stops[at]
        elif starts[at] == number:
            starts[at] = number + 1
        else:
            if stops[at] > number + 1:
                starts.insert(at + 1, number + 1)
                stops.insert(at + 1, stops[at])
            stops[at] = number

    def remove_below(self, stop: int) -> None:
        at = bisect_right(self._stops, stop)
        del self._starts[:at], self._stops[:at]
        if self._starts and self._starts[0] < stop:
            self._starts[0] = stop

    def upwards(self, start: int, stop: int) -> Iterator[int]:
        """The numbers from ``start`` to before ``stop``. The set must not change during the iteration."""
        for at in range(max(0, bisect_right(self._starts, start) - 1), len(self._starts)):
            if self._starts[at] >= stop:
                return
            yield from range(max(start, self._starts[at]), min(stop, self._stops[at]))

    def downwards(self, start: int, stop: int) -> Iterator[int]:
        """The same, the highest first."""
        for at in range(bisect_right(self._starts, stop - 1) - 1, -1, -1):
            if self._stops[at] <= start:
                return
            yield from range(min(stop, self._stops[at]) - 1, max(start, self._starts[at]) - 1, -1)
