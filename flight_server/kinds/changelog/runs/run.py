"""MemoryRun: sorted updates of a span of versions, in memory; never changed.

``RunFile`` (``run_files``) has the same attributes and methods. All of them may block, and may be called from any
thread.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flight_server.keys import Hashes
from flight_server.memory import Reservation

from .updates import Numbers, Updates

MAX_HASH = (1 << 64) - 1
LEAST_HASHES = 512
"""By which the keys of several runs are counted (``contents``): with so many an estimate is rarely 10 % off."""


class Damaged(Exception):
    """Bytes on disk differ from the written ones."""


class MemoryRun:
    """A run in memory.

    Args:
        room: counts its bytes.
    """

    def __init__(self, updates: Updates, first_version: int, last_version: int, room: Reservation) -> None:
        self.updates = updates
        # Attributes, because planning and small reads ask every run for them.
        self.rows = len(updates)
        self.size_bytes = updates.size_bytes
        self.retractions = updates.retractions
        self.tombstones = updates.tombstones
        self.first_version = first_version
        self.last_version = last_version
        self._room = room

    def count(self) -> None:
        """Let its bytes count, if its room is empty; also beyond the limit."""
        self._room.grow(self.size_bytes - self._room.size_bytes)

    @property
    def keys(self) -> int:
        """How many hashes it has."""
        return self.updates.distinct_hashes

    @cached_property
    def least_hashes(self) -> Hashes:
        """Its ``LEAST_HASHES`` least ones, sorted, or all of fewer."""
        return self.updates.unique_hashes[:LEAST_HASHES].copy()

    def ends(self) -> tuple[int, int]:
        """The least and the greatest hash; of a run without rows those of one that has every hash."""
        hashes = self.updates.hashes
        return (int(hashes[0]), int(hashes[-1])) if len(hashes) else (0, MAX_HASH)

    def rows_upto(self, versions: Numbers) -> Numbers:
        """How many rows have at most each of these versions; of a file not more than there are, and about as many."""
        own = self.updates.versions
        found: Numbers = np.where(versions >= self.last_version, self.rows, 0)
        for place in np.flatnonzero(
            (versions >= self.first_version) & (versions < self.last_version)
        ).tolist():
            found[place] = np.count_nonzero(own <= versions[place])
        return found

    def counts(self, lows: Hashes, sinces: Numbers, upto: int) -> tuple[Numbers, Numbers]:
        """For each range of hashes, which begins at a low, how many rows are newer than its ``since``, and how many of
        these have at most the version ``upto``.
        """
        starts = np.searchsorted(self.updates.hashes, lows, "left")
        rows = np.diff(starts, append=self.rows)
        newer = self.updates.versions > np.repeat(sinces, rows)
        found = []
        for flags in (newer, newer & (self.updates.versions <= upto)):
            below = np.concatenate([[0], np.cumsum(flags)])
            found.append(below[starts + rows] - below[starts])
        return found[0], found[1]

    def rows_below(self, hash_: int) -> int:
        """How many rows have a smaller hash."""
        return int(np.searchsorted(self.updates.hashes, np.uint64(hash_), "left"))

    def between(self, low: int, high: int) -> Updates:
        """The updates whose hash is from ``low`` to ``high``, both included."""
        return self.updates.between(low, high)

    def parts_between(self, low: int, high: int) -> list[Updates]:
        """The same in parts that follow each other and share the run's memory or mapping."""
        return [self.updates.between(low, high)]

    def bytes_between(self, low: int, high: int) -> int:
        """About how many bytes they have."""
        return self.updates.between(low, high).size_bytes

    def bytes_of(self, hashes: Hashes) -> NDArray[np.float64]:
        """About how many bytes the updates of each of these hashes have."""
        return self.updates.counts_of(hashes).astype(np.float64) * (self.size_bytes / max(1, self.rows))

    def of_hashes(self, hashes: Hashes, last: int | None = None) -> Updates:
        """The updates with one of these hashes, which are sorted and unique; if ``last`` is given, at least so many of
        the greatest of each key.
        """
        return self.updates.of_hashes(hashes, last)

    def changed(self, after: int, upto: int, low: int = 0, high: int = MAX_HASH) -> Hashes:
        """The hashes, with repetitions, from ``low`` to ``high``, both included, of updates whose version is above
        ``after`` and not above ``upto``.
        """
        updates = self.updates.between(low, high)
        if after < self.first_version and upto >= self.last_version:
            return updates.hashes
        return updates.hashes[(updates.versions > after) & (updates.versions <= upto)]
