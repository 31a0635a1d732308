"""Compaction: folds the old updates of some ranges into new bases, and rewrites recent runs as one.

Guarantee: neither changes a snapshot or deltas of a version that can be asked for. Both work in slices of whole keys in
a thread, hold no lock while they do, and change nothing until their result is published. They know contents and run
files alone.

Folds
    A :class:`Fold` takes all updates of some ranges up to ``since``, lets the rule say which it needs, and writes these
    to files as the bases of new ranges of about ``RANGE_ROWS`` or ``RANGE_BYTES``. Later updates stay in the recent
    runs. It ends after ``STEP_ROWS`` or ``STEP_BYTES``, behind a whole key, and the next fold goes on there; the rest
    of its last range is a range of its own then, with the old base. A hash that is too large for a slice is folded in
    pieces (``folding``), to a range of its own. A :class:`Rewrite` of all rows there are, all in memory, may fold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flight_server.memory import MemoryPool
from flight_server.records import BegunFold

from . import views
from .contents import Contents, Range
from .folding import added_up, in_pieces, left_by, pieces, rule_pieces
from .rules import Rule
from .runs import MAX_HASH, MemoryRun, Run, RunFile, RunWriter, Updates
from .views import slice_end

RANGE_ROWS = 64 << 10
RANGE_BYTES = 8 << 20
STEP_ROWS = 4 * RANGE_ROWS
STEP_BYTES = 4 * RANGE_BYTES

NewFile = Callable[[], RunWriter]


def range_rows(contents: Contents) -> int:
    """How many rows a range is to have: fewer if they are large."""
    size_bytes = contents.bases.size_bytes + sum(run.size_bytes for run in contents.recent)
    return min(RANGE_ROWS, RANGE_BYTES * contents.rows // max(1, size_bytes))


class Work:
    """A fold or a rewrite: iterate over ``steps``, each of which blocks for one slice and says about how many rows it
    read; then publish. One that is given up leaves no file (``runs.run_files``).

    Args:
        begun: of a fold.
        new_file: makes the writer of a file; None for a result in memory.
    """

    def __init__(
        self, contents: Contents, begun: BegunFold | None, rule: Rule, new_file: NewFile | None
    ) -> None:
        self.contents = contents
        self.layout = contents.bases.layout
        self.begun = begun
        self.rest: BegunFold | None = None  # of the fold, which another one does
        self.to_file = new_file is not None
        self._rule = rule
        self._new_file = new_file
        self._writer: RunWriter | None = None

    def steps(self) -> Iterator[int]:
        """Raises Damaged, DiskTrouble, OSError."""
        raise NotImplementedError

    def published(self, contents: Contents) -> Contents:
        """The contents that there are now, with the result. Blocks. Raises as ``steps``."""
        raise NotImplementedError

    def _write(self, updates: Updates) -> None:
        """To the file, behind all before."""
        if len(updates):
            if self._writer is None:
                assert self._new_file is not None
                self._writer = self._new_file()
            self._writer.add(updates)

    def _written(self) -> RunFile | None:
        writer, self._writer = self._writer, None
        return None if writer is None else writer.finish()


class Fold(Work):
    """See "Folds"."""

    def __init__(self, contents: Contents, begun: BegunFold, *, rule: Rule, new_file: NewFile) -> None:
        super().__init__(contents, begun, rule, new_file)
        self._fold = begun
        self._made: list[Range] = []
        self._next = begun.low  # where the next range begins

    def steps(self) -> Iterator[int]:
        fold, sources = self._fold, self.contents.sources
        low, rows, size_bytes = fold.low, 0, 0
        while low <= fold.high and rows < STEP_ROWS and size_bytes < STEP_BYTES:
            slice_rows = min(views.SLICE_ROWS, max(1, RANGE_ROWS // 2))
            high, large = slice_end(sources, slice_rows, low, 2 * views.SLICE_BYTES)
            high = min(high, fold.high)
            parts = [part for each in sources for part in each.parts_between(low, high)]
            if large:
                if self._next < low:
                    self._end_range(low - 1)
                whole = partial(rule_pieces, self.layout, parts, views.SLICE_BYTES, fold.upto)
                for left in in_pieces(whole, self._rule.rounds, partial(left_by, fold, self._rule)):
                    yield 0 if left is None else self._add(left)
                self._end_range(low)
                size_bytes += STEP_BYTES // 2
            else:
                updates = Updates.joined(self.layout, parts)
                self._add(left_by(fold, self._rule, updates))
                writer = self._writer
                if writer is not None and (writer.rows >= RANGE_ROWS or writer.size_bytes >= RANGE_BYTES):
                    self._end_range(high)
                rows, size_bytes = rows + len(updates), size_bytes + updates.size_bytes
                yield len(updates)
            low = high + 1
        if self._next < low:
            self._end_range(low - 1)
        self.rest = fold._replace(low=low, to_file=1) if low <= fold.high else None

    def _add(self, left: Updates) -> int:
        self._write(left.where(left.versions <= self._fold.since))
        return len(left)

    def _end_range(self, high: int) -> None:
        self._made.append(Range.of(self._next, high, self._fold.since, self._written()))
        self._next = high + 1

    def published(self, contents: Contents) -> Contents:
        return contents.folded(self._made)


class Rewrite(Work):
    """Recent runs become one, without dead rows.

    Args:
        runs: recent ones; of a fold all rows that there are, all in memory.
        memory: counts a result in memory.
    """

    def __init__(
        self,
        contents: Contents,
        runs: Sequence[Run],
        *,
        begun: BegunFold | None = None,
        rule: Rule,
        new_file: NewFile | None,
        memory: MemoryPool,
    ) -> None:
        super().__init__(contents, begun, rule, new_file)
        self.runs = runs
        self._memory = memory
        self._sources = replace(contents, recent=tuple(runs)).alive
        self._result: list[Run] = []

    def steps(self) -> Iterator[int]:
        if not self.to_file:
            yield self._in_memory()
            return
        low = 0
        while low <= MAX_HASH:
            high, _ = slice_end(self._sources, views.SLICE_ROWS, low, 2 * views.SLICE_BYTES)
            parts = [part for each in self._sources for part in each.parts_between(low, high)]
            for updates in pieces(self.layout, parts, 2 * views.SLICE_BYTES):
                self._write(added_up(updates))
                yield len(updates)
            low = high + 1
        file = self._written()
        self._result = [] if file is None else [file]

    def _in_memory(self) -> int:
        whole = Updates.joined(self.layout, [each.between(0, MAX_HASH) for each in self._sources])
        left = added_up(whole) if self.begun is None else left_by(self.begun, self._rule, whole)
        if len(left):
            # Of all rows that these runs stand for, also of those that an earlier fold has left out: what made them
            # garbage stays in the records as long as they do.
            first = min(run.first_version for run in self.runs)
            room = self._memory.reserve(left.size_bytes)
            self._result = [MemoryRun(left, first, int(whole.versions.max()), room)]
        return len(whole)

    def published(self, contents: Contents) -> Contents:
        since = contents.recent_since if self.begun is None else self.begun.since
        return contents.rewritten(self.runs, self._result, since)


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
