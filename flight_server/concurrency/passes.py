"""Passes: how many readers have passed each item of a queue, in memory that grows with the readers' places.

A reader passes ranges of neighbouring items. Only their borders are kept, each with how many more (or fewer) readers
have passed the item there than the one before it: two numbers for each place at which a reader is or has left.
"""

from __future__ import annotations


class Passes:
    """The passes of the items from ``first`` on, which grows once ``wanted`` readers have passed it."""

    __slots__ = ("_borders", "_passes", "first", "wanted")

    def __init__(self, wanted: int, first: int) -> None:
        self.wanted = wanted
        self.first = first
        self._passes = 0  # of the first item
        self._borders: dict[int, int] = {}

    def add(self, start: int, stop: int, by: int = 1) -> None:
        """``by`` more readers have passed these items; with -1, one that had is no longer counted."""
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
