"""View: a changelog's contents at one moment, and their reads.

A view never changes, so readers work on it in threads while commits go on. All methods block. A hash that is too large
for a slice is read in pieces (``folding``); between two of them the read holds the hash's parts of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import Hashes, array_over, unique
from flight_server.records import BegunFold

from .contents import Contents, Source
from .folding import PieceTotals, copies, folded, in_pieces, rule_pieces, shown
from .rules import Kept, Rule
from .runs import MAX_HASH, Layout, Updates

SLICE_ROWS = 64 << 10
MIN_SLICE_ROWS = 1
SLICE_BYTES = 8 << 20
MAX_LOOKED_AT_ROWS = 1 << 20
RESIDENT_BYTES = 16 << 20
"""The event loop reads files that have so few bytes together, when threads have decoded them."""
FEW_ROWS = 1024
FEW_BYTES = 256 << 10
"""Changes of which no more updates are looked at are read at once, in less than a millisecond."""


@dataclass(frozen=True)
class ViewPart:
    """The place that a read has come to, and the rows that it found there.

    Args:
        rows: None at the beginning.
        low: the next hash.
        high, passed: the last hash of a range of which so many rows were read: a row that is there many times takes
            several parts.
        pieces: the rows that follow of a large key.
    """

    rows: pa.RecordBatch | None = None
    low: int = 0
    high: int | None = None
    passed: int = 0
    pieces: Iterator[pa.RecordBatch] | None = None

    @property
    def left(self) -> bool:
        return self.low <= MAX_HASH


@dataclass(frozen=True)
class View:
    """The contents.

    Args:
        upper: the newest version.
        begun: a fold whose keys read as folded.
        slice_bytes: about so many are read together.
    """

    layout: Layout
    rule: Rule
    contents: Contents
    upper: int
    begun: BegunFold | None = None
    slice_bytes: int = field(default_factory=lambda: SLICE_BYTES)

    @property
    def in_memory(self) -> bool:
        """Whether all runs are, or are so small files that their pages stay there while they are read."""
        if self.contents.bases.size_bytes > RESIDENT_BYTES:
            return False
        files = self.contents.files
        return sum(run.size_bytes for run in files) <= RESIDENT_BYTES and all(run.is_decoded for run in files)

    @property
    def slice_rows(self) -> int:
        """How many rows are read together: at most ``SLICE_ROWS``, fewer if they are large."""
        runs = self.contents.sources
        rows = sum(run.rows for run in runs)
        row_bytes = max(1, sum(run.size_bytes for run in runs) // max(1, rows))
        return max(MIN_SLICE_ROWS, min(SLICE_ROWS, self.slice_bytes // row_bytes))

    def part(self, after: int | None, upto: int, before: ViewPart) -> ViewPart:
        """The rows that follow ``before`` in the collection at the version ``upto`` or, if ``after`` is not None, in
        its changes between these versions, consolidated, with ``_diff``; there may be none.

        Args:
            before: a part of any view of the changelog, for the same versions.
        """
        if before.pieces is not None:
            rows = next(before.pieces, None)
            if rows is not None:
                return replace(before, rows=rows)
            none = Updates.empty(self.layout)
            rows = none.rows if after is None else with_diffs(self.layout, none.rows, none.diffs)
            return ViewPart(rows, before.low + 1)
        if after is not None:
            updates, low = self._changed_part(after, upto, before.low, all_updates=False)
            if updates is None:
                return self.part(after, upto, ViewPart(low=low, pieces=self._large_key(low, after, upto)))
            return self._deltas(updates, after, upto, low)
        runs = self._runs_upto(upto)
        step, low, high = self.slice_rows, before.low, before.high
        if high is None:
            high, large = slice_end(runs, step, low, 2 * self.slice_bytes)
            if large:
                return self.part(None, upto, ViewPart(low=low, pieces=self._large_key(low, None, upto)))
        updates = self._joined([run.between(low, high) for run in runs])
        rows, left = copies(shown(updates, None, upto, self.rule), before.passed, step)
        return ViewPart(rows, low, high, before.passed + rows.num_rows) if left else ViewPart(rows, high + 1)

    def few_deltas(self, after: int, upto: int, max_rows: int, max_bytes: int) -> ViewPart | None:
        """All of the changes, if no more rows and bytes are looked at; else None."""
        runs = self._runs_upto(upto)
        new = [run for run in runs if run.last_version > after]
        if sum(run.rows for run in new) > max_rows:
            return None
        hashes = unique(*(run.changed(after, upto) for run in new))
        parts: list[Updates] = []
        for run, last in self._deciding(runs, after, upto):
            hits = run.hits(hashes)
            if last is None and hits.sizes_bytes().sum() > max_bytes:
                return None
            for part in hits.parts(last=last):
                parts.append(part)
                max_rows -= len(part)
                max_bytes -= part.size_bytes
                if min(max_rows, max_bytes) < 0:
                    return None
        return self._deltas(self._joined(parts), after, upto, MAX_HASH + 1)

    def changed(self, after: int, upto: int) -> Iterator[Updates]:
        """All updates, up to ``upto``, of the keys with updates in between, in parts of whole keys."""
        low = 0
        while low <= MAX_HASH:
            updates, low = self._changed_part(after, upto, low, all_updates=True)
            assert updates is not None
            yield updates

    def _runs_upto(self, version: int) -> list[Source]:
        return [run for run in self.contents.sources if run.first_version <= version]

    def _deltas(self, updates: Updates, after: int, upto: int, low: int) -> ViewPart:
        kept = shown(updates, after, upto, self.rule)
        return ViewPart(with_diffs(self.layout, kept.rows, kept.counts), low)

    def _changed_part(
        self, after: int, upto: int, low: int, *, all_updates: bool
    ) -> tuple[Updates | None, int]:
        """The updates of the next changed keys, and the hash behind them. Unless all updates are asked for, those that
        decide; and of a large key None, and its hash.
        """
        runs = self._runs_upto(upto)
        new = [run for run in runs if run.last_version > after]
        hashes, low = _changed_hashes(new, after, upto, low, self.slice_rows)
        fitting, limit_bytes = len(hashes), 2 * self.slice_bytes
        hits = [run.hits(hashes) for run in runs]
        if fitting and sum(run.size_bytes for run in runs) > limit_bytes:
            sizes = np.cumsum(np.sum([each.sizes_bytes() for each in hits], axis=0))
            fitting = max(1, int(np.searchsorted(sizes, limit_bytes, "right")))
            if fitting < len(hashes):
                low = int(hashes[fitting - 1]) + 1
            if not all_updates and sizes[fitting - 1] > limit_bytes:
                return None, int(hashes[0])
        greatest = [None if all_updates else last for _, last in self._deciding(runs, after, upto)]
        parts = [
            part for each, last in zip(hits, greatest, strict=True) for part in each.parts(fitting, last)
        ]
        return self._joined(parts), low

    def _joined(self, parts: Sequence[Updates]) -> Updates:
        """These updates of some keys; of the keys of the begun fold what that leaves, and later ones."""
        updates, begun = Updates.joined(self.layout, parts), self.begun
        if begun is None:
            return updates
        inside = updates.between(begun.low, begun.high)
        late = inside.versions > begun.upto
        # Without such ones it makes no difference.
        if not (late if self.rule.any_update_counts else late & (inside.diffs < 0)).any():
            return updates
        start = int(np.searchsorted(updates.hashes, np.uint64(begun.low), "left"))
        others = [updates.slice(0, start), updates.slice(start + len(inside), len(updates))]
        return Updates.joined(self.layout, [folded(begun, self.rule, inside), *others])

    def _deciding(self, runs: list[Source], after: int, upto: int) -> Iterator[tuple[Source, int | None]]:
        """Each run, with how many of its greatest updates of a key decide the rule's result at either version; None if
        all do. Without retractions and deletes few do (``Rule.greatest_rows``), if at either version all of the run's
        updates count, or none.
        """
        greatest = self.rule.greatest_rows
        if greatest is not None and any(run.retractions or run.tombstones for run in runs):
            greatest = None
        for run in runs:
            whole = run.last_version <= after or (after < run.first_version and run.last_version <= upto)
            yield run, greatest if whole else None

    def _large_key(self, hash_: int, after: int | None, upto: int) -> Iterator[pa.RecordBatch]:
        """The rows of a hash that is read in pieces; as of :meth:`part`."""
        rule, begun = self.rule, self.begun
        parts = [part for run in self._runs_upto(upto) for part in run.parts_between(hash_, hash_)]
        whole = partial(rule_pieces, self.layout, parts, self.slice_bytes, upto)

        def read_pieces() -> Iterator[Updates]:
            if begun is None or not begun.low <= hash_ <= begun.high:
                return whole()
            return filter(None, in_pieces(whole, rule.rounds, partial(folded, begun, rule)))

        def shown_of(piece: Updates, totals: PieceTotals | None) -> Kept:
            return shown(piece, after, upto, rule, totals)

        for kept in in_pieces(read_pieces, rule.rounds, shown_of):
            if kept is None:
                continue
            start, left = 0, after is None
            if after is not None:
                yield with_diffs(self.layout, kept.rows, kept.counts)
            while left:
                rows, left = copies(kept, start, self.slice_rows)
                start += rows.num_rows
                yield rows


def with_diffs(layout: Layout, rows: pa.RecordBatch, diffs: NDArray[np.int64]) -> pa.RecordBatch:
    """A batch of deltas."""
    return pa.RecordBatch.from_arrays([*rows.columns, array_over(diffs)], schema=layout.delta_schema)


def slice_end(
    runs: Sequence[Source], wanted_rows: int, low: int, limit_bytes: float = math.inf
) -> tuple[int, bool]:
    """The last hash of a range from ``low`` on that has about ``wanted_rows`` of the runs' rows (at most twice as many,
    unless one hash has more) and about ``limit_bytes`` at most; and whether it has more bytes nevertheless: then it is
    one hash.
    """
    below = sum((run.below(low) for run in runs), np.zeros(2))
    left_rows = int(sum(run.rows for run in runs) - below[0])
    # Hashes are spread evenly, so the first guess is nearly right. If it is not, the range's end is bisected.
    high = low + (MAX_HASH - low) * wanted_rows // max(wanted_rows, left_rows)
    least, most = low, MAX_HASH
    while True:
        rows, size_bytes = sum((run.below(high + 1) for run in runs), -below).tolist()
        large = size_bytes > limit_bytes
        if not large and rows <= 2 * wanted_rows and (rows or high == MAX_HASH):
            return high, False
        if rows and high == least:
            return (high - 1, False) if large and low < high else (high, large)
        least, most = (least, high) if rows else (high + 1, most)
        high = (least + most) // 2


def _changed_hashes(
    runs: Sequence[Source], after: int, upto: int, low: int, count: int
) -> tuple[Hashes, int]:
    """About ``count`` hashes from ``low`` on with updates in between, sorted and unique, and the hash behind them.

    They are looked for in ever larger ranges, so a few changed keys among many are found in few steps.
    """
    hashes, rows = np.zeros(0, np.uint64), count
    while low <= MAX_HASH and len(hashes) < count:
        high, _ = slice_end(runs, rows, low)
        changed = [run.changed(after, upto, low, high) for run in runs]
        hashes = np.concatenate([hashes, unique(*changed)])
        low, rows = high + 1, min(2 * rows, MAX_LOOKED_AT_ROWS)
    return (hashes, low) if len(hashes) <= count else (hashes[:count], int(hashes[count - 1]) + 1)
