"""Contents: where the updates of a changelog are at one moment: in the bases of its ranges, and in recent runs.

Guarantee: contents never change; commits, folds and rewrites (``compaction``) make others of them. A reader that has
them reads on while commits, folds and rewrites make others and delete files.

Ranges
    The hashes of keys are cut into ranges, without gaps. A range has one *base*, a run that stands for all of its
    updates up to the version ``since``: a file or, of a small changelog, in memory, and in the records.

Recent runs
    They have all updates above the ``since`` of their range; a run spans any ranges. They are in the order of their
    first versions: the updates of each key are then mostly in order as soon as those of all runs are sorted by hash,
    which takes a sixth of the time of a sort by hash and order. Rows that a base stands for, since their range was
    folded, may still be in a recent run, until it is rewritten. They are *dead*: readers pass over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flight_server.keys import Hashes
from flight_server.records import StoredRange

from .runs import MAX_HASH, Hits, Layout, MemoryRun, Numbers, Run, RunFile, Updates


@dataclass(frozen=True, slots=True)
class Range:
    """The keys whose hash is from ``low`` to ``high``, both included.

    Args:
        since: the version up to which ``base`` has all updates.
        base: None if it has no rows of them.
        block: the rows of a base in memory, for the records.
    """

    low: int = 0
    high: int = MAX_HASH
    since: int = 0
    base: Run | None = None
    block: bytes | None = None

    @property
    def rows(self) -> int:
        return 0 if self.base is None else self.base.rows

    @property
    def stored(self) -> StoredRange:
        name = self.base.name if isinstance(self.base, RunFile) else None
        return StoredRange(self.low, self.since, name, self.block)


class Bases(Run):
    """The bases of all ranges as one run: it has their blocks."""

    def __init__(self, layout: Layout, ranges: tuple[Range, ...]) -> None:
        self.ranges = ranges
        self.lows: Hashes = np.array([each.low for each in ranges], np.uint64)
        self.sinces: Numbers = np.array([each.since for each in ranges], np.int64)
        self.range_rows: Numbers = np.array([each.rows for each in ranges], np.int64)
        # Tuples: an idle changelog has empty ones, which take no memory.
        self.runs = tuple(each.base for each in ranges if each.base is not None)
        self._places = tuple((run, number) for run in self.runs for number in range(len(run.blocks)))
        super().__init__(layout, tuple(block for run in self.runs for block in run.blocks))
        self.first_version, self.last_version = 0, int(self.sinces.max())
        self._counted: tuple[Hashes, Numbers] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether one of them is."""
        return any(isinstance(run, MemoryRun) for run in self.runs)

    def block(self, number: int) -> Updates:
        run, place = self._places[number]
        return run.block(place)

    def numbers_of(self, hashes: Hashes) -> Numbers:
        """The place of each hash's range among the ranges."""
        return np.searchsorted(self.lows, hashes, "right") - 1

    def counts_of(self, hashes: Hashes) -> Numbers:
        """How many rows each of these hashes has. For one thread at a time: each hash is looked for in the files once,
        because the same ones are asked for until they are folded.
        """
        known, counts = self._counted or (hashes[:0], np.zeros(0, np.int64))
        new = np.setdiff1d(hashes, known, assume_unique=True)
        if len(new):
            places = np.searchsorted(known, new)
            known = np.insert(known, places, new)
            counts = np.insert(counts, places, self.hits(new).counts())
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
        self.below = run.below
        self.changed = run.changed  # versions that can be asked for are above those of dead rows

    def between(self, low: int, high: int) -> Updates:
        return self._bases.alive(self._run.between(low, high))

    def parts_between(self, low: int, high: int) -> list[Updates]:
        return [self._bases.alive(part) for part in self._run.parts_between(low, high)]

    def hits(self, hashes: Hashes) -> Hits:
        return self._run.hits(hashes).without_dead(self._bases.sinces[self._bases.numbers_of(hashes)])


Source = Run | PartlyDead


@dataclass(frozen=True)
class Contents:
    """See the module's text."""

    bases: Bases
    recent: tuple[Run, ...] = ()

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
    def runs(self) -> list[Run]:
        return [*self.bases.runs, *self.recent]

    @property
    def files(self) -> list[RunFile]:
        return [run for run in self.runs if isinstance(run, RunFile)]

    @property
    def rows(self) -> int:
        """With dead ones."""
        return self.bases.rows + sum(run.rows for run in self.recent)

    @property
    def size_bytes(self) -> int:
        return self.bases.size_bytes + sum(run.size_bytes for run in self.recent)

    def old_rows(self, since: int) -> int:
        """About how many rows a fold up to ``since`` would find old (``planning``), as if each run had equally many of
        each version and hash. Reads no file.
        """
        widths = np.diff(self.bases.lows.astype(np.float64), append=2.0**64) / 2.0**64
        rows = 0.0
        for run in self.recent:
            versions = run.last_version + 1 - run.first_version
            first = np.maximum(self.bases.sinces + 1, run.first_version)
            old = np.maximum(0, min(since, run.last_version) + 1 - first)
            rows += run.rows * float((widths * old).sum()) / versions
        return int(np.ceil(rows))

    def committed(self, runs: Sequence[Run]) -> Contents:
        """With runs of new versions."""
        return Contents(self.bases, (*self.recent, *runs))

    def rewritten(self, runs: Sequence[Run], by: Sequence[Run]) -> Contents:
        """With others in the place of recent runs, of which some may have gone meanwhile."""
        recent = [*by, *(run for run in self.recent if run not in runs)]
        recent.sort(key=lambda run: run.first_version)
        return Contents(self.bases, tuple(recent))

    def folded(self, by: Sequence[Range]) -> Contents:
        """With these ranges in the place of those that they cover. Recent runs of which all rows are dead go."""
        low, high = by[0].low, by[-1].high
        below = [each for each in self.bases.ranges if each.high < low]
        above = [each for each in self.bases.ranges if high < each.low]
        bases = Bases(self.bases.layout, (*below, *by, *above))
        recent = []
        for run in self.recent:
            first, last = bases.numbers_of(np.array(run.ends(), np.uint64)).tolist()
            if run.last_version > bases.sinces[first : last + 1].min():
                recent.append(run)
        return Contents(bases, tuple(recent))
