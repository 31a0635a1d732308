"""Compaction: folds the old updates of some ranges into new bases, and rewrites recent runs as one.

Guarantee: neither changes a snapshot or deltas of a version that can be asked for. Both work in slices of whole keys in
a thread, hold no lock while they do, and change nothing until their result is published. They know contents and run
files alone.

A :class:`Fold` takes all updates of some ranges up to ``since``, lets the rule say which it needs, and writes these to
the bases of new ranges of about ``RANGE_ROWS`` or ``RANGE_BYTES``; in memory there is one of all hashes. Later updates
stay in the recent runs. A hash that is too large for a slice is folded in pieces (``folding``), to a range of its own.
A :class:`Rewrite` leaves dead rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

from flight_server.memory import MemoryPool
from flight_server.records import BegunFold

from . import views
from .contents import Contents, Range, Source
from .folding import added_up, folded, in_pieces, pieces, rule_pieces
from .rules import Rule
from .runs import MAX_HASH, Layout, MemoryRun, Run, RunFile, Updates, of_block, to_block
from .views import slice_end

RANGE_ROWS = 64 << 10
RANGE_BYTES = 8 << 20

NewFile = Callable[[], RunFile]


def range_rows(contents: Contents) -> int:
    """How many rows a range is to have: fewer if they are large."""
    return min(RANGE_ROWS, RANGE_BYTES * contents.rows // max(1, contents.size_bytes))


class Work:
    """A fold or a rewrite that was begun: do the ``steps``, each of which blocks for one slice and says about how many
    rows it read; then publish. One that is given up is closed, and leaves no file (``runs.run_files``).

    Args:
        new_file: makes a file; None for a result in memory, which ``memory`` counts.
    """

    begun: BegunFold | None = None  # of a fold
    in_memory = False  # whether it rewrites runs in memory
    busy = False  # whether its next slice is being done

    def __init__(
        self,
        layout: Layout,
        sources: Sequence[Source],
        new_file: NewFile | None,
        memory: MemoryPool,
    ) -> None:
        self.layout = layout
        self.to_file = new_file is not None
        self.steps = self._slices(sources)  # which are released with the last one
        self._new_file = new_file
        self._memory = memory
        self._file: RunFile | None = None
        self._parts: list[Updates] = []

    def close(self) -> None:
        """Give it up."""
        self.steps.close()

    def _slices(self, sources: Sequence[Source]) -> Generator[int, None, None]:
        """Raises Damaged, DiskTrouble, OSError."""
        raise NotImplementedError

    def published(self, contents: Contents) -> Contents:
        """The contents that there are now, with the result. Blocks, if that is in files. Raises as ``steps``."""
        raise NotImplementedError

    def _write(self, updates: Updates) -> None:
        """Behind all before."""
        if self._new_file is None:
            self._parts.append(updates)
        elif len(updates):
            self._file = self._file or self._new_file()
            self._file.add(updates)

    def _written(self) -> Run | None:
        """What was written; None if nothing was."""
        if self._new_file is None:
            updates = Updates.in_order(self.layout, self._parts)
            room = self._memory.reserve(updates.size_bytes)
            return MemoryRun(updates, room) if len(updates) else None
        file, self._file = self._file, None
        return None if file is None else file.finish()


class Fold(Work):
    """A fold."""

    def __init__(
        self, contents: Contents, begun: BegunFold, rule: Rule, new_file: NewFile | None, memory: MemoryPool
    ) -> None:
        super().__init__(contents.bases.layout, contents.sources, new_file, memory)
        self.begun: BegunFold = begun
        self._rule = rule
        self._made: list[Range] = []
        self._next = begun.low  # where the next range begins

    def _slices(self, sources: Sequence[Source]) -> Generator[int, None, None]:
        fold, low = self.begun, self.begun.low
        while low <= fold.high:
            slice_rows = min(views.SLICE_ROWS, max(1, RANGE_ROWS // 2))
            high, large = slice_end(sources, slice_rows, low, 2 * views.SLICE_BYTES)
            high = min(high, fold.high)
            parts = [part for each in sources for part in each.parts_between(low, high)]
            if large:
                self._end_range(low - 1)
                whole = partial(rule_pieces, self.layout, parts, views.SLICE_BYTES, fold.upto)
                for left in in_pieces(whole, self._rule.rounds, partial(folded, fold, self._rule)):
                    yield 0 if left is None else self._add(left)
                self._end_range(low)
            else:
                updates = Updates.joined(self.layout, parts)
                self._add(folded(fold, self._rule, updates))
                file = self._file
                if file is not None and (file.rows >= RANGE_ROWS or file.size_bytes >= RANGE_BYTES):
                    self._end_range(high)
                yield len(updates)
            low = high + 1
        self._end_range(fold.high)

    def _add(self, left: Updates) -> int:
        self._write(left.where(left.versions <= self.begun.since))
        return len(left)

    def _end_range(self, high: int) -> None:
        """The range ends at this hash, unless it is in memory and others follow."""
        if self._next <= high and (self.to_file or high == self.begun.high):
            base, block = self._written(), None
            if isinstance(base, MemoryRun):
                block = to_block(base.updates).to_pybytes()
                base.updates = of_block(self.layout, block)  # which has no memory beside
            self._made.append(Range(self._next, high, self.begun.since, base, block))
            self._next = high + 1

    def published(self, contents: Contents) -> Contents:
        return contents.folded(self._made)


class Rewrite(Work):
    """Recent runs become one, without dead rows."""

    def __init__(
        self, contents: Contents, runs: Sequence[Run], new_file: NewFile | None, memory: MemoryPool
    ) -> None:
        # In the order of their versions, see ``Contents``.
        recent = tuple(run for run in contents.recent if run in runs)
        sources = replace(contents, recent=recent).alive
        super().__init__(contents.bases.layout, sources, new_file, memory)
        self.in_memory = all(isinstance(run, MemoryRun) for run in runs)
        self._runs = runs
        self._result: Run | None = None

    def _slices(self, sources: Sequence[Source]) -> Generator[int, None, None]:
        if not self.to_file:
            whole = Updates.joined(self.layout, [each.between(0, MAX_HASH) for each in sources])
            self._write(added_up(whole))
            yield len(whole)
        low = 0 if self.to_file else MAX_HASH + 1
        while low <= MAX_HASH:
            high, _ = slice_end(sources, views.SLICE_ROWS, low, 2 * views.SLICE_BYTES)
            parts = [part for each in sources for part in each.parts_between(low, high)]
            for updates in pieces(self.layout, parts, 2 * views.SLICE_BYTES):
                self._write(added_up(updates))
                yield len(updates)
            low = high + 1
        self._result = self._written()

    def published(self, contents: Contents) -> Contents:
        runs, self._runs = self._runs, []
        return contents.rewritten(runs, [] if self._result is None else [self._result])
