"""Contents: where the updates of a changelog are at one moment: in the bases of its ranges, and in recent runs.

Guarantee: contents never change; commits, folds and rewrites (``compaction``) make others of them. A reader that has
them reads on while commits, folds and rewrites make others and delete files.

Ranges
    The hashes of keys are cut into ranges, without gaps. A range has one *base*, which stands for all of its updates up
    to the version ``since``, and is a file. To cut a range costs nothing: both parts refer to one base until they are
    folded.

Recent runs
    They have all updates above the ``since`` of their range, in no order; a run spans any ranges. Rows that a base
    stands for, since their range was folded, may still be in a recent run, until it is rewritten. They are *dead*:
    readers pass over them. While all rows are in memory, a fold leaves them in a recent run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flight_server.keys import Hashes

from .runs import MAX_HASH, Layout, MemoryRun, Run, RunFile, Updates

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Range:
    """The keys whose hash is from ``low`` to ``high``, both included.

    Args:
        since: the version up to which ``base`` has all updates.
        base: None if it has no rows. Updates with other hashes in it count for nothing.
        rows: how many rows the base has of this range.
    """

    low: int = 0
    high: int = MAX_HASH
    since: int = 0
    base: RunFile | None = None
    rows: int = 0

    @classmethod
    def of(cls, low: int, high: int, since: int, base: RunFile) -> Range:
        """Count the rows; reads no block if all are in the range."""
        until = base.rows if high == MAX_HASH else base.rows_below(high + 1)
        rows = until - base.rows_below(low)
        return cls(low, high, since, base if rows else None, rows)

    def part(self, low: int, high: int) -> Range:
        """The part between these hashes, both included."""
        if (low, high) == (self.low, self.high):
            return self
        if self.base is None:
            return replace(self, low=low, high=high)
        return Range.of(low, high, self.since, self.base)


class Bases:
    """The bases of all ranges as one run: it has the methods of :class:`MemoryRun` that readers call."""

    first_version = tombstones = 0
    # A changelog without rows has few bytes of these.
    __slots__ = (
        "_counted",
        "last_version",
        "layout",
        "lows",
        "range_rows",
        "ranges",
        "retractions",
        "rows",
        "sinces",
        "size_bytes",
    )

    def __init__(self, layout: Layout, ranges: tuple[Range, ...]) -> None:
        self.layout = layout
        self.ranges = ranges
        self.lows: Hashes = np.array([each.low for each in ranges], np.uint64)
        self.sinces: Numbers = np.array([each.since for each in ranges], np.int64)
        self.last_version = int(self.sinces.max())
        self.range_rows: Numbers = np.array([each.rows for each in ranges], np.int64)
        self.rows = int(self.range_rows.sum())
        bases = [(each.rows / each.base.rows, each.base) for each in ranges if each.base is not None]
        self.size_bytes = round(sum(share * base.size_bytes for share, base in bases))
        self.retractions = sum(run.retractions for run in self.runs)
        self._counted: tuple[Hashes, Numbers] | None = None

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Of which ranges the base has rows of others, too."""
        return np.array([each.base is not None and each.rows < each.base.rows for each in self.ranges])

    @property
    def runs(self) -> set[RunFile]:
        return {each.base for each in self.ranges if each.base is not None}

    def numbers_of(self, hashes: Hashes) -> Numbers:
        """The place of each hash's range among the ranges."""
        return np.searchsorted(self.lows, hashes, "right") - 1

    def _within(self, low: int, high: int) -> Iterator[tuple[RunFile, int, int]]:
        """The bases with hashes in between, each with the first and the last of these."""
        if low > high:
            return
        first, last = self.numbers_of(np.array([low, high], np.uint64)).tolist()
        for each in self.ranges[first : last + 1]:
            if each.base is not None:
                yield each.base, max(low, each.low), min(high, each.high)

    def rows_below(self, hash_: int) -> int:
        number = int(self.numbers_of(np.array([hash_], np.uint64))[0])
        each, before = self.ranges[number], int(self.range_rows[:number].sum())
        if each.base is None or hash_ == each.low:
            return before
        return before + each.base.rows_below(hash_) - each.base.rows_below(each.low)

    def between(self, low: int, high: int) -> Updates:
        return Updates.in_order(self.layout, self.parts_between(low, high))

    def parts_between(self, low: int, high: int) -> list[Updates]:
        return [
            part for base, first, last in self._within(low, high) for part in base.parts_between(first, last)
        ]

    def bytes_between(self, low: int, high: int) -> int:
        return sum(base.bytes_between(first, last) for base, first, last in self._within(low, high))

    def of_hashes(self, hashes: Hashes, last: int | None = None) -> Updates:
        parts = [base.of_hashes(some, last) for base, some, _ in self._with(hashes)]
        return Updates.in_order(self.layout, parts)

    def bytes_of(self, hashes: Hashes) -> NDArray[np.float64]:
        sizes = np.zeros(len(hashes))
        for base, some, start in self._with(hashes):
            sizes[start : start + len(some)] = base.bytes_of(some)
        return sizes

    def counts_of(self, hashes: Hashes) -> Numbers:
        """How many rows have each of these hashes, which are sorted and unique. For one thread at a time: each hash is
        looked for in the files once, because the same ones are asked for until they are folded.
        """
        known, counts = self._counted or (hashes[:0], np.zeros(0, np.int64))
        new = np.setdiff1d(hashes, known, assume_unique=True)
        if len(new):
            places = np.searchsorted(known, new)
            added = np.zeros(len(new), np.int64)
            for base, some, start in self._with(new):
                added[start : start + len(some)] = base.counts_of(some)
            known, counts = np.insert(known, places, new), np.insert(counts, places, added)
            self._counted = known, counts
        return counts[np.searchsorted(known, hashes)]

    def _with(self, hashes: Hashes) -> Iterator[tuple[RunFile, Hashes, int]]:
        """The bases that may have some of these hashes, and which, and where they begin."""
        numbers = self.numbers_of(hashes)
        for number in np.unique(numbers).tolist():
            start, stop = np.searchsorted(numbers, [number, number + 1]).tolist()
            base = self.ranges[number].base
            if base is not None:
                yield base, hashes[start:stop], start

    def changed(self, after: int, upto: int, low: int = 0, high: int = MAX_HASH) -> Hashes:
        """None: no version that can be asked for lies before one in a base."""
        del after, upto, low, high
        return np.zeros(0, np.uint64)

    def alive(self, updates: Updates) -> Updates:
        """Those of a recent run's updates that no base stands for."""
        return updates.where(updates.versions > self.sinces[self.numbers_of(updates.hashes)])


class PartlyDead:
    """A recent run of which some rows may be dead, without these; numbers count them. Its methods are those of
    :class:`MemoryRun` that readers call.
    """

    def __init__(self, run: Run, bases: Bases) -> None:
        self._run = run
        self._bases = bases
        self.in_memory = isinstance(run, MemoryRun)
        self.rows, self.size_bytes = run.rows, run.size_bytes
        self.first_version, self.last_version = run.first_version, run.last_version
        self.retractions, self.tombstones = run.retractions, run.tombstones
        self.rows_below, self.bytes_between, self.bytes_of = run.rows_below, run.bytes_between, run.bytes_of
        self.changed = run.changed  # versions that can be asked for are above those of dead rows

    def between(self, low: int, high: int) -> Updates:
        return self._bases.alive(self._run.between(low, high))

    def parts_between(self, low: int, high: int) -> list[Updates]:
        return [self._bases.alive(part) for part in self._run.parts_between(low, high)]

    def of_hashes(self, hashes: Hashes, last: int | None = None) -> Updates:
        in_run = self._run.updates if isinstance(self._run, MemoryRun) else self._run.of_hashes(hashes)
        return in_run.of_hashes(hashes, last, self._bases.sinces[self._bases.numbers_of(hashes)])


Source = MemoryRun | Run | Bases | PartlyDead


@dataclass(frozen=True)
class Contents:
    """See the module's text. ``recent_since``: the version up to which the last fold in memory went."""

    bases: Bases
    recent: tuple[Run, ...] = ()
    recent_since: int = 0

    @classmethod
    def empty(cls, layout: Layout) -> Contents:
        return cls(Bases(layout, (Range(),)))

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """What readers read: together they have each update once."""
        return (self.bases, *self.alive) if self.bases.rows else self.alive

    @cached_property
    def alive(self) -> tuple[Source, ...]:
        """The recent runs without dead rows."""
        oldest = self.bases.last_version
        return tuple(
            run if run.first_version > oldest else PartlyDead(run, self.bases) for run in self.recent
        )

    @property
    def runs(self) -> set[Run]:
        return {*self.bases.runs, *self.recent}

    @property
    def rows(self) -> int:
        """With dead ones."""
        return self.bases.rows + sum(run.rows for run in self.recent)

    @cached_property
    def folded_rows(self) -> int:
        """About how many rows a fold has left: those of the bases, and of a fold in memory."""
        folded = [run for run in self.recent if run.first_version <= self.recent_since]
        return self.bases.rows + sum(int(run.rows_upto(np.array([self.recent_since]))[0]) for run in folded)

    @cached_property
    def waiting_retractions(self) -> int:
        """How many of these are retractions."""
        parts = [run.updates for run in self.recent if isinstance(run, MemoryRun) and run.retractions]
        folded = (part.where(part.versions <= self.recent_since) for part in parts)
        return self.bases.retractions + sum(part.retractions for part in folded)

    def committed(self, runs: Sequence[Run]) -> Contents:
        """With runs of new versions."""
        return replace(self, recent=(*self.recent, *runs))

    def rewritten(self, runs: Sequence[Run], by: Sequence[Run], recent_since: int = 0) -> Contents:
        """With others in the place of recent runs, of which some may have gone meanwhile."""
        recent = (*by, *(run for run in self.recent if run not in runs))
        return replace(self, recent=recent, recent_since=max(self.recent_since, recent_since))

    def folded(self, by: Sequence[Range]) -> Contents:
        """With these ranges in the place of what they cover. Recent runs of which all rows are dead go."""
        ranges = list(by)
        for each in self.bases.ranges:
            low = each.low
            for new in by:
                if each.low <= new.high and new.low <= each.high:
                    if low < new.low:
                        ranges.append(each.part(low, new.low - 1))
                    low = new.high + 1
            if low <= each.high:
                ranges.append(each.part(low, each.high))
        bases = Bases(self.bases.layout, tuple(sorted(ranges, key=lambda each: each.low)))
        recent = []
        for run in self.recent:
            first, last = bases.numbers_of(np.array(run.ends(), np.uint64)).tolist()
            if run.last_version > bases.sinces[first : last + 1].min():
                recent.append(run)
        return replace(self, bases=bases, recent=tuple(recent))
