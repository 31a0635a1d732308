"""Updates: rows with their versions and diffs, sorted; every run of a changelog consists of them.

Guarantee: updates are sorted by the key's hash, the key, ``order_by``, all columns, and the version. So rows of one key
are neighbours, the greatest last, and equal rows are neighbours, too.

Sorting
    Hash and order columns decide nearly always, as machine integers. Updates of parts that follow each other mostly are
    in order once they are sorted by hash, so order columns are compared first. Only rows that tie, or whose keys differ
    under one hash, are compared by all columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import (
    Codes,
    Hashes,
    array_over,
    codes,
    falling,
    is_plain,
    numbers,
    plain,
    same,
)

from .layout import Layout, no_rows

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

DELETE = np.iinfo(np.int64).min
"""The diff of a tombstone, which deletes its key's earlier rows; see ``deletes``."""


@dataclass(frozen=True, eq=False)
class Updates:
    """Four columns of equal length. ``distinct``: it is known that no two rows are equal."""

    layout: Layout
    rows: pa.RecordBatch
    hashes: Hashes
    versions: Numbers
    diffs: Numbers
    distinct: bool = False

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def empty(cls, layout: Layout) -> Updates:
        nothing = np.zeros(0, np.int64)
        return cls(layout, no_rows(layout.schema), nothing.view(np.uint64), nothing, nothing)

    @classmethod
    def of(cls, layout: Layout, rows: pa.RecordBatch, versions: Numbers, diffs: Numbers) -> Updates:
        """Sorted updates of rows in any order."""
        return cls(layout, rows, layout.hashes(rows), versions, diffs)._sort()

    @classmethod
    def joined(cls, layout: Layout, parts: Sequence[Updates]) -> Updates:
        """All updates of sorted parts, sorted."""
        parts = [part for part in parts if len(part)]
        updates = cls.in_order(layout, parts)
        return updates if len(parts) < 2 else updates._sort()

    @classmethod
    def in_order(cls, layout: Layout, parts: Sequence[Updates]) -> Updates:
        """All updates of parts that follow each other."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls.empty(layout)
        if len(parts) == 1:
            return parts[0]
        return cls(
            layout,
            pa.concat_batches([part.rows for part in parts]),
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.versions for part in parts]),
            np.concatenate([part.diffs for part in parts]),
        )

    @cached_property
    def size_bytes(self) -> int:
        row_bits = self.layout.row_bits
        rows_bytes = self.rows.nbytes if row_bits is None else row_bits * len(self) // 8
        return int(rows_bytes) + 24 * len(self)

    @cached_property
    def retractions(self) -> int:
        """How many diffs are below zero, without tombstones."""
        below = int(np.count_nonzero(self.diffs < 0))
        return below - self.tombstones if below else 0

    @cached_property
    def tombstones(self) -> int:
        """How many diffs are ``DELETE``."""
        return int(np.count_nonzero(self.diffs == DELETE))

    @property
    def only_removes(self) -> bool:
        """Whether each diff is below zero, of retractions or tombstones, and there is one."""
        return 0 < len(self) == self.retractions + self.tombstones

    def slice(self, start: int, stop: int) -> Updates:
        """A part; shares memory."""
        return Updates(
            self.layout,
            self.rows.slice(start, stop - start),
            self.hashes[start:stop],
            self.versions[start:stop],
            self.diffs[start:stop],
            self.distinct,
        )

    def cut(self, max_rows: int, max_bytes: int) -> Iterator[Updates]:
        """Parts of at most so many rows and about so many bytes, but of one row at least; they share memory."""
        start = 0
        while start < len(self):
            part = self.slice(start, min(start + max_rows, len(self)))
            while len(part) > 1 and part.size_bytes > max_bytes:
                part = part.slice(0, max(1, len(part) * max_bytes // part.size_bytes))
            yield part
            start += len(part)

    def take(self, indices: Numbers) -> Updates:
        """These rows, in the order of ``indices``, which must keep them sorted."""
        return Updates(
            self.layout,
            self.rows.take(array_over(indices)),
            self.hashes[indices],
            self.versions[indices],
            self.diffs[indices],
            self.distinct,
        )

    def where(self, flags: Flags) -> Updates:
        return self if flags.all() else self.take(flags.nonzero()[0])

    def between(self, low: int, high: int) -> Updates:
        """The rows whose hash is from ``low`` to ``high``, both included; shares memory."""
        start = int(np.searchsorted(self.hashes, np.uint64(low), "left"))
        return self.slice(start, int(np.searchsorted(self.hashes, np.uint64(high), "right")))

    def ends_of(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """For each of these sorted and unique hashes the place of its first row, and behind its last one."""
        return self.hashes.searchsorted(hashes, "left"), self.hashes.searchsorted(hashes, "right")

    def at(
        self, starts: Numbers, ends: Numbers, last: int | None = None, above: Numbers | None = None
    ) -> Updates:
        """The rows of hashes that are at these places (:meth:`ends_of`); if ``last`` is given, at least so many of the
        greatest of each key; if ``above`` is given, only those of versions above that of their hash. May share memory.
        """
        places: Numbers | None = None
        if above is not None:
            counts = ends - starts
            places = ranges(starts, counts)
            places = places[self.versions[places] > np.repeat(above, counts)]
            starts, ends = np.searchsorted(places, starts), np.searchsorted(places, ends)
        most = int((ends - starts).max(initial=0))
        if not most:
            return self.slice(0, 0)
        if last is not None and most > last and not self._collides:
            starts = np.maximum(starts, ends - last)
        if places is None and len(starts) == 1:
            return self.slice(int(starts[0]), int(ends[0]))
        chosen = ranges(starts, ends - starts)
        return self.take(chosen if places is None else places[chosen])

    @cached_property
    def _differ_in_hash(self) -> bool:
        """Whether different keys certainly do."""
        return self.layout.keys_differ_in_hash and not self.rows.column(self.layout.key[0]).null_count

    @property
    def _collides(self) -> bool:
        """Whether two keys have one hash."""
        return not self._differ_in_hash and bool((self._new_key != self._new_hash).any())

    # Neighbours

    @cached_property
    def row_starts(self) -> Numbers:
        """int64: where a row differs from the one before it. The first is 0, if there is a row."""
        return np.arange(len(self)) if self.distinct else np.flatnonzero(self._new_row)

    @cached_property
    def key_starts(self) -> Numbers:
        return np.flatnonzero(self._new_key)

    @cached_property
    def _new_hash(self) -> Flags:
        new = np.ones(len(self), np.bool_)
        new[1:] = self.hashes[1:] != self.hashes[:-1]
        return new

    @cached_property
    def _new_key(self) -> Flags:
        return self._new_hash if self._differ_in_hash else self._or_differ(self._new_hash, self.layout.key)

    @cached_property
    def _new_row(self) -> Flags:
        first = [number for number, _ in self.layout.order]  # they differ mostly
        key = {*first, *self.layout.key}
        others = [number for number in range(self.rows.num_columns) if number not in key]
        return self._or_differ(self._new_key, [*first, *others])

    def _or_differ(self, new: Flags, columns: Sequence[int]) -> Flags:
        """These flags, and where a row (not the first) differs from the one before it in one of the columns."""
        new = new.copy()
        for number in columns:
            places = np.flatnonzero(~new)
            if not len(places):
                break
            column = plain(self.rows.column(number))
            if is_plain(column.type):
                values = codes(column) if column.null_count else numbers(column)
                equal = (values[1:] == values[:-1])[places - 1]
            elif 2 * len(places) > len(self):
                equal = same(column[1:], column[:-1])[places - 1]
            else:
                equal = same(column.take(pa.array(places)), column.take(pa.array(places - 1)))
            new[places] = ~equal
        return new

    # Sorting

    def _sort(self) -> Updates:
        # This sort finds the parts that are sorted already, and merges them.
        order = self.hashes.argsort(kind="stable")
        hashes = self.hashes[order]
        tie = hashes[1:] == hashes[:-1]
        if tie.any():
            ranks = [rank[order] for rank in self._order_codes()]
            falls, equal = _compare_ranks(ranks, tie)
            if falls.any():
                numbers, inside = _groups_with(falls, tie)
                again = np.lexsort((*(rank[inside] for rank in reversed(ranks)), numbers[inside]))
                order[inside] = order[inside][again]
                for rank in ranks:
                    rank[inside] = rank[inside][again]
                _, equal = _compare_ranks(ranks, tie)
            tie = equal
        return (self if (order[1:] > order[:-1]).all() else self.take(order))._ties_sorted(tie)

    def _order_codes(self) -> list[Codes]:
        return [
            falling(codes(self.rows.column(number))) if smallest_first else codes(self.rows.column(number))
            for number, smallest_first in self.layout.order
        ]

    def _ties_sorted(self, tie: Flags) -> Updates:
        """These, which are sorted but for ties; see "Sorting". ``tie``: for each row but the first whether it has the
        hash and the order columns of the one before it.
        """
        if not (tie.any() or self._collides):
            return replace(self, distinct=True)
        same_hash = ~self._new_hash[1:]
        unsorted = tie & (self._new_row[1:] | (self.versions[1:] < self.versions[:-1]))
        if self._collides:
            of_keys = self.hashes[self.key_starts]
            collides = same_hash & np.isin(self.hashes[1:], of_keys[1:][of_keys[1:] == of_keys[:-1]])
            unsorted, tie = unsorted | collides, tie | collides
        if not unsorted.any():
            return self
        blocks, inside = _groups_with(unsorted, tie)
        members = np.flatnonzero(inside)
        subset = self.take(members)
        first = {number for number, _ in self.layout.order} | set(self.layout.key)
        rest = [number for number in range(self.rows.num_columns) if number not in first]
        keys = [codes(subset.rows.column(number)) for number in self.layout.key]
        others = [codes(subset.rows.column(number)) for number in rest]
        ranks = [blocks[inside], *keys, *subset._order_codes(), *others, subset.versions]
        order = np.arange(len(self))
        order[members] = members[np.lexsort(tuple(reversed(ranks)))]
        return self.take(order)


def rows_at(rows: pa.RecordBatch, places: Numbers) -> pa.RecordBatch:
    """The rows at these places, which ascend; of neighbours a part that shares memory."""
    count, first = len(places), int(places[0]) if len(places) else 0
    if count and int(places[-1]) - first >= count:
        return rows.take(array_over(places))
    return rows if count == rows.num_rows else rows.slice(first, count)


def _compare_ranks(ranks: Sequence[Codes], tie: Flags) -> tuple[Flags, Flags]:
    """Of the rows that tie with the one before them: which ones rank below it, by the first ranks that differ, and
    which have the same ranks.
    """
    falls, equal = np.zeros(len(tie), np.bool_), tie.copy()
    for rank in ranks:
        falls |= equal & (rank[1:] < rank[:-1])
        equal &= rank[1:] == rank[:-1]
    return falls, equal


def _groups_with(marked: Flags, tie: Flags) -> tuple[Numbers, Flags]:
    """For each row the number of its group, of rows that tie with the one before them, and whether one of the group is
    marked. Both flags are those of each row but the first.
    """
    numbers = np.zeros(len(tie) + 1, np.int64)
    np.cumsum(~tie, out=numbers[1:])
    with_mark = np.zeros(len(numbers), np.bool_)
    with_mark[numbers[1:][marked]] = True
    return numbers, with_mark[numbers]


def ranges(starts: Numbers, counts: Numbers) -> Numbers:
    """The integers from each start on, as many as its count, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    integers: Numbers = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return integers
