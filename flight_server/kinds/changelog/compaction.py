"""Compaction: folds the old updates of a range into its new base, and rewrites recent runs as one.

Guarantee: neither changes a snapshot or deltas of a version that can be asked for. Both work in slices of whole keys in
a thread, hold no lock while they do, and change nothing until their result is published: one that did not come so far
begins again. They know contents and run files alone.

Folding
    :class:`Fold` takes all updates of some ranges up to ``since``, lets the rule say which it needs, and makes these
    the new bases. Later updates stay in the recent runs. A fold ends after ``STEP_ROWS`` or ``STEP_BYTES``, behind a
    whole key; the rest of its last range is a range of its own then, with the old base. The result is cut into ranges
    of about ``RANGE_ROWS`` or ``RANGE_BYTES`` if it is larger than two of these.

Late retractions
    A commit that comes while a fold works may retract rows, so that one shows which the rule has left out. A reader may
    have seen it, so the keys of which the rule left something out, and something was retracted since (of a rule of
    ``whole_keys`` anything was put), are folded again with these commits (:meth:`Fold.catch_up`), and the files are
    written again.

Large keys
    A hash that is too large for a slice is folded alone, in pieces (``large_keys``), to a file. If the rule leaves too
    much of it to be held, or has to be asked again, its updates are only added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from flight_server.keys import Hashes, unique
from flight_server.memory import MemoryPool

from . import views
from .contents import Contents, Range
from .folding import added_up, compacted
from .large_keys import TooLarge, folded, pieces
from .rules import Rule
from .runs import MAX_HASH, MemoryRun, Run, RunFile, RunWriter, Updates
from .views import slice_end

RANGE_ROWS = 64 << 10
RANGE_BYTES = 8 << 20
STEP_ROWS = 4 * RANGE_ROWS
STEP_BYTES = 4 * RANGE_BYTES
HELD_BYTES = views.FOLDED_BYTES
"""So much of a large key is held to apply the rule to it."""

_EVER, _NEVER = -1, np.iinfo(np.int64).max
"""Versions before and behind all others."""

NewFile = Callable[[], RunWriter]


def range_rows(contents: Contents) -> int:
    """How many rows a range is to have: fewer if they are large."""
    size_bytes = contents.bases.size_bytes + sum(run.size_bytes for run in contents.recent)
    return min(RANGE_ROWS, RANGE_BYTES * contents.rows // max(1, size_bytes))


class Work:
    """A fold or a rewrite: iterate over ``steps``, each of which blocks for one slice and says how many rows it read;
    then publish. One that is given up leaves no file (``runs.run_files``).

    Args:
        new_file: makes the writer of a file; None for a result in memory.
        memory: counts a result in memory.
    """

    def __init__(self, contents: Contents, new_file: NewFile | None, memory: MemoryPool) -> None:
        self.contents = contents
        self.layout = contents.bases.layout
        self.to_file = new_file is not None
        self._new_file = new_file
        self._memory = memory
        self._writer: RunWriter | None = None

    def steps(self) -> Iterator[int]:
        """Raises Damaged, DiskTrouble, OSError."""
        raise NotImplementedError

    def catch_up(self, contents: Contents) -> bool:
        """Let the result be right beside these contents, too, which have further commits; whether it was not. Blocks.
        Raises as ``steps``.
        """
        del contents
        return False

    def published(self, contents: Contents) -> Contents:
        """These contents with the result, which has caught up with them. Blocks."""
        raise NotImplementedError

    def _write(self, part: Updates) -> Run | None:
        """A file of these; None if there are none."""
        for _ in self._writing([part]):
            pass
        return self._written()

    def _writing(self, parts: Iterable[Updates]) -> Iterator[int]:
        """Write parts, which follow each other; how many rows each has."""
        for part in parts:
            if len(part):
                if self._writer is None:
                    assert self._new_file is not None
                    self._writer = self._new_file()
                self._writer.add(part)
            yield len(part)

    def _written(self) -> RunFile | None:
        writer, self._writer = self._writer, None
        return None if writer is None else writer.finish()

    def _in_memory(self, updates: Updates, first_version: int | None = None) -> MemoryRun:
        first = int(updates.versions.min()) if first_version is None else first_version
        room = self._memory.reserve(updates.size_bytes)
        return MemoryRun(updates, first, int(updates.versions.max()), room)


class Fold(Work):
    """See "Folding".

    Args:
        first, last: the places of the ranges, both included.
        since: up to which updates are folded; not below that of these ranges.
        rule: says which are needed.
    """

    def __init__(
        self,
        contents: Contents,
        first: int,
        last: int,
        *,
        since: int,
        rule: Rule,
        new_file: NewFile | None,
        memory: MemoryPool,
    ) -> None:
        super().__init__(contents, new_file, memory)
        self.low, self.high = contents.bases.ranges[first].low, contents.bases.ranges[last].high
        self.since = since
        self._rule = rule
        self._began = self._caught_up = max((run.last_version for run in contents.recent), default=0)
        self._sources = contents.sources
        self._large = False
        self._kept: list[Updates] = []
        self._changed: list[Hashes] = []
        self._ranges: list[Range] = []
        self._later: list[Run] = []  # what is left of recent runs that are folded in memory

    def steps(self) -> Iterator[int]:
        low, rows, size_bytes = self.low, 0, 0
        while low <= self.high:
            high, large = slice_end(self._sources, views.SLICE_ROWS, low, 2 * views.SLICE_BYTES)
            high, large = min(high, self.high), large and self.to_file
            if rows and (large or rows >= STEP_ROWS or size_bytes >= STEP_BYTES):
                self.high = low - 1
                break
            if large:
                self.high, self._large = low, True
                yield from self._large_key()
                return
            updates = Updates.joined(self.layout, [each.between(low, high) for each in self._sources])
            self._kept.append(self._folded(updates))
            rows, size_bytes = rows + len(updates), size_bytes + self._kept[-1].size_bytes
            low = high + 1
            yield len(updates)
        self._make_ranges()
        if not self.to_file:
            later = [each.between(0, MAX_HASH) for each in self.contents.alive]
            later = [updates.where(updates.versions > self.since) for updates in later]
            updates = Updates.joined(self.layout, later)
            self._later = [self._in_memory(updates)] if len(updates) else []

    def _folded(self, updates: Updates) -> Updates:
        left, changed = compacted(updates, self.since, self._rule)
        self._changed.append(changed)
        return left.where(left.versions <= self.since)

    def _large_key(self) -> Iterator[int]:
        # No update has a smaller hash of the range.
        runs = [each.parts_between(self.high, self.high) for each in self._sources]
        parts: Iterable[Updates]
        try:
            held = folded(
                self.layout,
                runs,
                self.since,
                _NEVER,
                self._rule,
                piece_bytes=views.SLICE_BYTES,
                limit_bytes=HELD_BYTES,
            )
            parts = [compacted(held, self.since, self._rule)[0]]
            self._changed.append(np.array([self.high], np.uint64))
        except TooLarge:
            parts = pieces(self.layout, runs, self.since, _NEVER, views.SLICE_BYTES)
        yield from self._writing(part.where(part.versions <= self.since) for part in parts)
        base = self._written()
        self._ranges = [Range(self.low, self.high, self.since, base, 0 if base is None else base.rows)]

    def _make_ranges(self) -> None:
        kept = Updates.in_order(self.layout, self._kept)
        self._kept = [kept]
        parts = self._cut(kept)
        self._ranges, low = [], self.low
        for number, part in enumerate(parts, 1):
            high = self.high if number == len(parts) else int(part.hashes[-1])
            base: Run | None = None
            if len(part):
                base = self._write(part) if self.to_file else self._in_memory(part, self._first_version())
            self._ranges.append(Range(low, high, self.since, base, len(part)))
            low = high + 1

    def _cut(self, kept: Updates) -> list[Updates]:
        """In parts for one range each, of whole hashes."""
        if len(kept) <= 2 * RANGE_ROWS and kept.size_bytes <= 2 * RANGE_BYTES:
            return [kept]
        count = max(len(kept) // RANGE_ROWS, kept.size_bytes // RANGE_BYTES)
        ends = kept.hashes[np.arange(1, count) * len(kept) // count]
        places = np.unique(np.searchsorted(kept.hashes, ends, "right"))
        bounds = [0, *(place for place in places.tolist() if place < len(kept)), len(kept)]
        return [kept.slice(start, stop) for start, stop in pairwise(bounds)]

    def _first_version(self) -> int:
        """The first version that a base in memory stands for. A restart takes the versions from there on from the
        records again, so those of dead rows do not count: what made them garbage may be gone.
        """
        return min(
            each.since + 1 if each.base is None else each.base.first_version
            for each in self.contents.bases.ranges
        )

    def catch_up(self, contents: Contents) -> bool:
        late = [run for run in contents.recent if run.last_version > self._caught_up]
        parts = [part for run in late for part in run.parts_between(self.low, self.high)]
        parts = [part.where(part.versions > self._caught_up) for part in parts]
        self._caught_up = max((run.last_version for run in late), default=self._caught_up)
        asked = unique(*(part.unique_hashes if self._rule.whole_keys else part.retracted for part in parts))
        hashes = asked[np.isin(asked, unique(*self._changed))]
        if not len(hashes):
            return False
        if self._large:
            self._rule, self._changed = Rule(), []
            for _ in self._large_key():
                pass
            return True
        whole = [each.of_hashes(hashes) for each in self._sources]
        for run in contents.recent:
            if run.last_version > self._began:
                updates = run.of_hashes(hashes)
                whole.append(updates.where(updates.versions > self._began))
        again = self._folded(Updates.joined(self.layout, whole))
        others = [part.where(~np.isin(part.hashes, hashes)) for part in self._kept]
        self._kept = [Updates.joined(self.layout, [*others, again])]
        self._make_ranges()
        return True

    def published(self, contents: Contents) -> Contents:
        if not self.to_file:
            contents = contents.rewritten(self.contents.recent, self._later)
        return contents.folded(self.low, self.high, self._ranges)


class Rewrite(Work):
    """Recent runs become one, without dead rows. To a file, the bases that are in memory become files, too: nothing
    that these contents have is in memory only then.

    Args:
        runs: recent ones.
    """

    def __init__(
        self, contents: Contents, runs: Sequence[Run], new_file: NewFile | None, memory: MemoryPool
    ) -> None:
        super().__init__(contents, new_file, memory)
        self.runs = runs
        self._result: list[Run] = []
        self._ranges: list[Range] = []

    def steps(self) -> Iterator[int]:
        if self.to_file:
            for each in self.contents.bases.ranges:
                if isinstance(each.base, MemoryRun):
                    self._ranges.append(replace(each, base=self._write(each.base.updates)))
        sources = replace(self.contents, recent=tuple(self.runs)).alive
        parts: list[Updates] = []
        low = 0
        while low <= MAX_HASH:
            high, large = slice_end(sources, views.SLICE_ROWS, low, 2 * views.SLICE_BYTES)
            runs = [each.parts_between(low, high) for each in sources]
            updates = [part for run in runs for part in run]
            low = high + 1
            if not self.to_file:
                parts += updates
                yield sum(map(len, updates))
            elif large:
                yield from self._writing(pieces(self.layout, runs, _EVER, _NEVER, views.SLICE_BYTES))
            else:
                yield from self._writing([added_up(Updates.joined(self.layout, updates))])
        if self.to_file:
            file = self._written()
            self._result = [] if file is None else [file]
        else:
            whole = added_up(Updates.joined(self.layout, parts))
            self._result = [self._in_memory(whole)] if len(whole) else []

    def published(self, contents: Contents) -> Contents:
        for each in self._ranges:
            contents = contents.folded(each.low, each.high, [each])
        return contents.rewritten(self.runs, self._result)


@dataclass(eq=False)
class Going:
    """Work that was begun.

    Args:
        in_memory: whether it works on runs in memory.
        alone: whether no other work goes on meanwhile.
        busy: its next slice is being done.
    """

    work: Work | None
    steps: Iterator[int]
    in_memory: bool
    alone: bool
    busy: bool = False

    def take(self) -> Work:
        """The work, once, to be released."""
        work, self.work, self.steps = self.work, None, iter(())
        assert work is not None
        return work
