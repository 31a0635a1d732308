"""Passes: how many readers have passed each item of a queue, in memory that grows with the readers' places.

What one reader has passed is a run of neighbours. So only the borders of such runs are kept, each with how many
more (or fewer) readers have passed the item there than the one before it: two numbers for each place at which a
reader is or has left, however many items there are.
"""

from __future__ import annotations


class Passes:
    """Of the items from ``first`` on.

    Args:
        wanted: so many passes are enough.
    """

    __slots__ = ("_borders", "_passes", "first", "wanted")

    def __init__(self, wanted: int, first: int) -> None:
        self.wanted = wanted
        self.first = first
        self._passes = 0  # of the first item
        self._borders: dict[int, int] = {}

    def add(self, start: int, stop: int, by: int = 1) -> None:
        """So many more readers have passed these items; with -1, one that was counted for them counts no more."""
        start = max(start, self.first)
        if start >= stop:
            return
        if start == self.first:
            self._passes += by
        else:
            self._change(start, by)
        self._change(stop, -by)
        while self._passes >= self.wanted:
            self.first += 1
            self._passes += self._borders.pop(self.first, 0)

    def _change(self, index: int, by: int) -> None:
        by += self._borders.pop(index, 0)
        if by:
            self._borders[index] = by
