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

from .runs import MAX_HASH, Block, Layout, MemoryRun, Run, RunFile, Updates

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Range:
    """The keys whose hash is from ``low`` to ``high``, both included.

    Args:
        since: the version up to which ``base`` has all updates.
        base: None if it has no rows of them.
        blocks: those of the base with such rows, of which they count, by their numbers.
    """

    low: int = 0
    high: int = MAX_HASH
    since: int = 0
    base: RunFile | None = None
    blocks: tuple[tuple[int, Block], ...] = ()

    @classmethod
    def of(cls, low: int, high: int, since: int, base: RunFile | None) -> Range:
        """Look which rows of a file it has; reads no block if all are in the range."""
        if base is None:
            return cls(low, high, since)
        blocks = []
        for number, block in enumerate(base.blocks):
            if low <= block.low and block.high <= high:
                blocks.append((number, block))
            elif block.low <= high and low <= block.high and (part := base.block(number).between(low, high)):
                ends = {"low": int(part.hashes[0]), "high": int(part.hashes[-1])}
                size_bytes = block.size_bytes * len(part) // block.rows
                blocks.append((number, block._replace(rows=len(part), size_bytes=size_bytes, **ends)))
        return cls(low, high, since, base if blocks else None, tuple(blocks))

    @property
    def rows(self) -> int:
        return sum(block.rows for _, block in self.blocks)

    def part(self, low: int, high: int) -> Range:
        """The part between these hashes, both included."""
        return self if (low, high) == (self.low, self.high) else Range.of(low, high, self.since, self.base)


class Bases(Run):
    """The bases of all ranges as one run: it has their blocks."""

    first_version = 0

    def __init__(self, layout: Layout, ranges: tuple[Range, ...]) -> None:
        self.ranges = ranges
        self.lows: Hashes = np.array([each.low for each in ranges], np.uint64)
        self.sinces: Numbers = np.array([each.since for each in ranges], np.int64)
        self.last_version = int(self.sinces.max())
        self.range_rows: Numbers = np.array([each.rows for each in ranges], np.int64)
        # Of each block its file and its place there, and the range that it is in.
        self._places = tuple((each.base, number, each) for each in ranges for number, _ in each.blocks)
        blocks = tuple(block for each in ranges for _, block in each.blocks)
        retractions = sum(run.retractions for run in self.runs)
        super().__init__(layout, blocks, sum(block.size_bytes for block in blocks), retractions, 0)
        self._counted: tuple[Hashes, Numbers] | None = None

    def block(self, number: int) -> Updates:
        base, place, each = self._places[number]
        assert base is not None
        return base.block(place).between(each.low, each.high)

    @property
    def runs(self) -> set[RunFile]:
        return {each.base for each in self.ranges if each.base is not None}

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Of which ranges the base has rows of others, too."""
        whole = [0 if each.base is None else each.base.rows for each in self.ranges]
        return np.array(whole) > self.range_rows

    def numbers_of(self, hashes: Hashes) -> Numbers:
        """The place of each hash's range among the ranges."""
        return np.searchsorted(self.lows, hashes, "right") - 1

    def counts_of(self, hashes: Hashes) -> Numbers:
        """As of any run. For one thread at a time: each hash is looked for in the files once, because the same ones are
        asked for until they are folded.
        """
        known, counts = self._counted or (hashes[:0], np.zeros(0, np.int64))
        new = np.setdiff1d(hashes, known, assume_unique=True)
        if len(new):
            places = np.searchsorted(known, new)
            known, counts = np.insert(known, places, new), np.insert(counts, places, super().counts_of(new))
            self._counted = known, counts
        return counts[np.searchsorted(known, hashes)]

    def alive(self, updates: Updates) -> Updates:
        """Those of a recent run's updates that no base stands for."""
        return updates.where(updates.versions > self.sinces[self.numbers_of(updates.hashes)])


class PartlyDead:
    """A recent run of which some rows may be dead, without these; numbers count them. It has the methods of a run that
    readers call.
    """

    def __init__(self, run: Run, bases: Bases) -> None:
        self._run = run
        self._bases = bases
        self.rows, self.size_bytes = run.rows, run.size_bytes
        self.first_version, self.last_version = run.first_version, run.last_version
        self.retractions, self.tombstones = run.retractions, run.tombstones
        self.rows_below, self.bytes_between, self.bytes_of = run.rows_below, run.bytes_between, run.bytes_of
        self.changed = run.changed  # versions that can be asked for are above those of dead rows

    def between(self, low: int, high: int) -> Updates:
        return self._bases.alive(self._run.between(low, high))

    def parts_between(self, low: int, high: int) -> list[Updates]:
        return [self._bases.alive(part) for part in self._run.parts_between(low, high)]

    def parts_of(self, hashes: Hashes, last: int | None = None) -> Iterator[Updates]:
        for number, some in self._run.blocks_with(hashes):
            sinces = self._bases.sinces[self._bases.numbers_of(some)]
            yield self._run.block(number).of_hashes(some, last, sinces)


Source = Run | PartlyDead


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

    def old_rows(self, since: int) -> int:
        """About how many rows a fold up to ``since`` would find old (``planning``). Reads no file."""
        widths = np.diff(self.bases.lows.astype(np.float64), append=2.0**64) / 2.0**64
        folded = np.maximum(self.bases.sinces, self.recent_since)
        rows = 0.0
        for run in self.recent:
            until = run.rows_upto(np.append(folded, since))
            rows += float((widths * np.maximum(0, until[-1] - until[:-1])).sum())
        return int(np.ceil(rows))

    @cached_property
    def waiting_retractions(self) -> int:
        """How many of these are retractions."""
        parts = [run.updates for run in self.recent if isinstance(run, MemoryRun) and run.retractions]
        folded = (part.where(part.versions <= self.recent_since) for part in parts)
        return self.bases.retractions + sum(part.retractions for part in folded)

    def committed(self, runs: Sequence[Run]) -> Contents:
        """With runs of new versions."""
        return replace(self, recent=(*self.recent, *runs))

    def rewritten(self, runs: Sequence[Run], by: Sequence[Run], recent_since: int) -> Contents:
        """With others in the place of recent runs, of which some may have gone meanwhile."""
        recent = (*by, *(run for run in self.recent if run not in runs))
        return replace(self, recent=recent, recent_since=recent_since)

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
