"""MemoryRun: sorted updates of a span of versions, in memory; never changed.

``RunFile`` (``run_files``) has the same attributes and methods. All of them may block, and may be called from any
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flight_server.keys import Hashes, unique
from flight_server.memory import Reservation

from .updates import DELETE, Numbers, Updates

MAX_HASH = (1 << 64) - 1


class Damaged(Exception):
    """Bytes on disk differ from the written ones."""


Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Question:
    """What of a run is counted, for each range of hashes, which begins at a low.

    Args:
        sinces: a row is alive if it is newer than that of its range,
        olds: and old if it is newer than that,
        upto: and not newer than this version.
        ends_keys: which updates may end their keys, beside tombstones; None if none do.
    """

    lows: Hashes
    sinces: Numbers
    olds: Numbers
    upto: int
    ends_keys: Callable[[Updates], Flags] | None = None

    def same_but_upto(self, other: Question) -> bool:
        """Whether the other one is about the same ranges."""
        return all(map(np.array_equal, *((each.lows, each.sinces, each.olds) for each in (self, other))))


class Counts:
    """The answer. ``retracting``: how many old rows are retractions; ``ending``: the hashes, sorted and unique, of old
    rows that end keys; ``recount_at``: it is an earlier one, and there is another one then (``time.monotonic``).
    """

    recount_at: float | None = None

    def __init__(self, question: Question) -> None:
        self._question = question
        self.alive, self.old, self.retracting = (np.zeros(len(question.lows), np.int64) for _ in range(3))
        self.ending: Hashes = np.zeros(0, np.uint64)

    def add(self, updates: Updates) -> None:
        """Count these, too."""
        question = self._question
        starts = np.searchsorted(updates.hashes, question.lows, "left")
        rows = np.diff(starts, append=len(updates))
        versions, diffs = updates.versions, updates.diffs
        old = (versions > np.repeat(question.olds, rows)) & (versions <= question.upto)
        self._sum(self.alive, versions > np.repeat(question.sinces, rows), starts, rows)
        self._sum(self.old, old, starts, rows)
        if updates.retractions:
            self._sum(self.retracting, old & (diffs < 0) & (diffs != DELETE), starts, rows)
        ending = diffs == DELETE
        if question.ends_keys is not None:
            ending |= question.ends_keys(updates)
        ending &= old
        if ending.any():
            self.ending = unique(self.ending, updates.hashes[ending])

    def add_rows(self, place: int, rows: int, *, old: bool) -> None:
        """Count so many rows of one range, which are alive."""
        self.alive[place] += rows
        self.old[place] += rows if old else 0

    @staticmethod
    def _sum(into: Numbers, flags: Flags, starts: Numbers, rows: Numbers) -> None:
        below = np.concatenate([[0], np.cumsum(flags)])
        into += below[starts + rows] - below[starts]


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

    def ends(self) -> tuple[int, int]:
        """The least and the greatest hash; of a run without rows those of one that has every hash."""
        hashes = self.updates.hashes
        return (int(hashes[0]), int(hashes[-1])) if len(hashes) else (0, MAX_HASH)

    def rows_upto(self, versions: Numbers) -> Numbers:
        """How many rows have at most each of these versions; of a file not more than there are, and about as many."""
        own = self.updates.versions
        rows: Numbers = np.where(versions >= self.last_version, self.rows, 0)
        for place in np.flatnonzero(
            (versions >= self.first_version) & (versions < self.last_version)
        ).tolist():
            rows[place] = np.count_nonzero(own <= versions[place])
        return rows

    def counts(self, question: Question) -> Counts:
        """How many rows there are of which kind."""
        counts = Counts(question)
        counts.add(self.updates)
        return counts

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

    def counts_of(self, hashes: Hashes) -> Numbers:
        """How many rows have each of these hashes, which are sorted and unique."""
        return self.updates.counts_of(hashes)

    def of_hashes(self, hashes: Hashes, last: int | None = None) -> Updates:
        """The updates with one of these hashes, which are sorted and unique; if ``last`` is given, at least so many of
        the greatest of each key.
        """
        return self.updates.of_hashes(hashes, last)

    def changed(self, after: int, upto: int, low: int = 0, high: int = MAX_HASH) -> Hashes:
        """The hashes, with repetitions, from ``low`` to ``high``, both included, of updates whose version is above
        ``after`` and not above ``upto``.
        """
        updates = self.updates
        if (low, high) != (0, MAX_HASH):
            updates = updates.between(low, high)
        if after < self.first_version and upto >= self.last_version:
            return updates.hashes
        return updates.hashes[(updates.versions > after) & (updates.versions <= upto)]
