"""NumberRanges: a set of numbers, kept as the ranges of neighbours in it, in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter

Range = tuple[int, int]
"""From its first number to before the second one."""


class NumberRanges:
    """Its size grows with the gaps. Each call takes time with the ranges between the numbers that it is for only."""

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        """Neither empty nor neighbours."""

    def add(self, begin: int, end: int) -> None:
        """One more range that none of them overlaps."""
        ranges = self.ranges
        first = last = bisect_left(ranges, begin, key=itemgetter(0))
        if first and ranges[first - 1][1] == begin:
            first -= 1
            begin = ranges[first][0]
        if last < len(ranges) and ranges[last][0] == end:
            end = ranges[last][1]
            last += 1
        ranges[first:last] = [(begin, end)]

    def remove(self, begin: int, end: int) -> None:
        first, last = self._between(begin, end)
        if first < last:
            rest = (self.ranges[first][0], begin), (end, self.ranges[last - 1][1])
            self.ranges[first:last] = [(low, high) for low, high in rest if low < high]

    def gaps(self, begin: int, end: int) -> list[Range]:
        """The parts from ``begin`` to before ``end`` that are in none of the ranges."""
        first, last = self._between(begin, end)
        gaps = []
        for low, high in self.ranges[first:last]:
            gaps.append((begin, low))
            begin = high
        return [(low, high) for low, high in (*gaps, (begin, end)) if low < high]

    def upwards(self, begin: int, end: int) -> Iterator[int]:
        """The numbers from ``begin`` to before ``end``. The set must not change during the iteration."""
        for at in range(*self._between(begin, end)):
            low, high = self.ranges[at]
            yield from range(max(begin, low), min(end, high))

    def downwards(self, begin: int, end: int) -> Iterator[int]:
        """The same, the highest first."""
        for at in reversed(range(*self._between(begin, end))):
            low, high = self.ranges[at]
            yield from reversed(range(max(begin, low), min(end, high)))

    def _between(self, begin: int, end: int) -> tuple[int, int]:
        """Where the ranges that overlap these numbers lie: the first one, and the one after the last."""
        return (
            bisect_right(self.ranges, begin, key=itemgetter(1)),
            bisect_left(self.ranges, end, key=itemgetter(0)),
        )
