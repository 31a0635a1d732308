"""Updates: rows with their versions and diffs, sorted; what every run of a changelog consists of.

Guarantee: updates are sorted by the key's hash, the key, ``order_by``, all columns, and the version. So rows of one key
are neighbours, the greatest last, and equal rows are neighbours, too.

Sorting
    Hash and order columns decide nearly always, as machine integers. Only rows that tie, or whose keys differ under one
    hash, are compared by all columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .codes import Codes, codes, compute, falling, is_plain, numbers, plain
from .key_hashes import Hashes
from .layout import Layout, no_rows

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

FEW_ROWS = 64
"""So few rows take less time than to look which of them are the greatest."""

DELETE = np.iinfo(np.int64).min
"""The diff of a tombstone, which deletes what its key had before; see ``changelogs.deletes``."""


@dataclass(frozen=True, eq=False)
class Updates:
    """See the module's text. Four columns of equal length."""

    layout: Layout
    rows: pa.RecordBatch
    hashes: Hashes
    versions: Numbers
    diffs: Numbers

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def empty(cls, layout: Layout) -> Updates:
        nothing = np.zeros(0, np.int64)
        return cls(layout, no_rows(layout.schema), nothing.view(np.uint64), nothing, nothing)

    @classmethod
    def of(cls, layout: Layout, rows: pa.RecordBatch, versions: Numbers, diffs: Numbers) -> Updates:
        """Sorted updates of rows in any order."""
        return cls(layout, rows, layout.hashes(rows), versions, diffs)._sorted()

    @classmethod
    def joined(cls, layout: Layout, parts: Sequence[Updates]) -> Updates:
        """All updates of sorted parts, sorted."""
        parts = [part for part in parts if len(part)]
        found = cls.in_order(layout, parts)
        return found if len(parts) < 2 else found._sorted()

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
        """What the columns take in RAM."""
        return int(self.rows.nbytes) + 24 * len(self)

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

    @cached_property
    def retracted(self) -> Hashes:
        """uint64, sorted and unique: the hashes of retractions."""
        retracts = (self.diffs < 0) & (self.diffs != DELETE)
        return np.unique(self.hashes[retracts]) if self.retractions else self.hashes[:0]

    def retractions_of(self, hashes: Hashes) -> Updates:
        """The retractions with one of these hashes, which are sorted and unique. Reads no row of another update."""
        if not self.retractions:
            return self.slice(0, 0)
        found = self._places_of(hashes)
        return self.take(found[self.diffs[found] < 0])

    def having(self, hashes: Hashes) -> Hashes:
        """Those of these hashes, sorted and unique, that an update has. Reads no row."""
        places = np.searchsorted(self.hashes, hashes, "left")
        there = places < len(self)
        there[there] = self.hashes[places[there]] == hashes[there]
        return hashes[there]

    @cached_property
    def distinct_hashes(self) -> int:
        """How many different hashes there are."""
        return int(np.count_nonzero(self._new_hash))

    def slice(self, start: int, stop: int) -> Updates:
        """A part; shares memory."""
        return Updates(
            self.layout,
            self.rows.slice(start, stop - start),
            self.hashes[start:stop],
            self.versions[start:stop],
            self.diffs[start:stop],
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
            self.rows.take(pa.array(indices)),
            self.hashes[indices],
            self.versions[indices],
            self.diffs[indices],
        )

    def where(self, wanted: Flags) -> Updates:
        """The rows of these places."""
        return self if wanted.all() else self.take(np.flatnonzero(wanted))

    def between(self, low: int, high: int) -> Updates:
        """The rows whose hash is from ``low`` to ``high``, both included; shares memory."""
        start = int(np.searchsorted(self.hashes, np.uint64(low), "left"))
        return self.slice(start, int(np.searchsorted(self.hashes, np.uint64(high), "right")))

    def negated(self) -> Updates:
        """The updates that take these back, of which none is a tombstone."""
        return Updates(self.layout, self.rows, self.hashes, self.versions, -self.diffs)

    def counts_of(self, hashes: Hashes) -> Numbers:
        """How many rows each of these hashes has."""
        starts, ends = self._ends_of(hashes)
        return ends - starts

    def of_hashes(self, hashes: Hashes, last: int | None = None) -> Updates:
        """The rows with one of these hashes, which are sorted and unique; if ``last`` is given, at least so many of the
        greatest of each key. May share memory.
        """
        starts, ends = self._ends_of(hashes)
        rows = int((ends - starts).sum())
        if last is not None and rows > last * len(hashes) + FEW_ROWS and not self._collides:
            starts = np.maximum(starts, ends - last)
        if not rows:
            return self.slice(0, 0)
        if len(hashes) == 1:
            return self.slice(int(starts[0]), int(ends[0]))
        return self.take(ranges(starts, ends - starts))

    def _places_of(self, hashes: Hashes) -> Numbers:
        starts, ends = self._ends_of(hashes)
        return ranges(starts, ends - starts)

    def _ends_of(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """For each of these hashes the place of its first row, and behind its last one."""
        return self.hashes.searchsorted(hashes, "left"), self.hashes.searchsorted(hashes, "right")

    @cached_property
    def _collides(self) -> bool:
        """Whether two keys have one hash."""
        return bool(self._differ(np.flatnonzero(~self._new_hash), self.layout.key).any())

    # Neighbours

    @cached_property
    def row_starts(self) -> Numbers:
        """int64: where a row differs from the one before it. The first is 0, if there is a row."""
        return np.flatnonzero(self._new_row)

    @cached_property
    def key_starts(self) -> Numbers:
        """int64: where a key begins."""
        new = self._new_hash.copy()
        same = np.flatnonzero(~new)
        new[same] = self._differ(same, self.layout.key)
        return np.flatnonzero(new)

    @cached_property
    def _new_hash(self) -> Flags:
        new = np.ones(len(self), np.bool_)
        new[1:] = self.hashes[1:] != self.hashes[:-1]
        return new

    @cached_property
    def _new_row(self) -> Flags:
        new = self._new_hash.copy()
        first = [number for number, _ in self.layout.order]
        rest = [number for number in range(self.rows.num_columns) if number not in first]
        for group in (first, rest):
            same = np.flatnonzero(~new)
            new[same] = self._differ(same, group)
        return new

    def _differ(self, places: Numbers, columns: Sequence[int]) -> Flags:
        """Whether the row at each place (above 0) differs from the one before it in one of the columns."""
        found = np.zeros(len(places), np.bool_)
        if len(places) == 0:
            return found
        if 2 * len(places) <= len(self):
            return self._differ_at(places, places - 1, columns)
        for number in columns:
            found |= neighbours_differ(plain(self.rows.column(number)))[places - 1]
        return found

    def _differ_at(self, left: Numbers, right: Numbers, columns: Sequence[int]) -> Flags:
        """Whether the rows at the places ``left`` differ from those at ``right`` in one of the columns."""
        found = np.zeros(len(left), np.bool_)
        for number in columns:
            column = plain(self.rows.column(number))
            if is_plain(column.type):
                values = codes(column) if column.null_count else numbers(column)
                found |= values[left] != values[right]
            else:
                found |= pairs_differ(column.take(pa.array(left)), column.take(pa.array(right)))
        return found

    # Sorting

    def _sorted(self) -> Updates:
        order_codes = [
            (falling(found) if smallest_first else found)
            for number, smallest_first in self.layout.order
            for found in [codes(self.rows.column(number))]
        ]
        order = np.lexsort((*reversed(order_codes), self.hashes))
        hashes = self.hashes[order]
        sorted_codes = [found[order] for found in order_codes]
        same_hash = hashes[1:] == hashes[:-1]
        if same_hash.any():
            order = self._ties_sorted(order, hashes, same_hash, sorted_codes)
        if np.array_equal(order, np.arange(len(order))):
            return self
        return self.take(order)

    def _ties_sorted(
        self, order: Numbers, hashes: Hashes, same_hash: Flags, order_codes: list[Codes]
    ) -> Numbers:
        """The order with its ties decided; see "Sorting" in the module's text."""
        tie = same_hash.copy()
        for found in order_codes:
            tie &= found[1:] == found[:-1]
        same = np.flatnonzero(same_hash)
        collides = self._differ_at(order[same + 1], order[same], self.layout.key)
        if collides.any():
            tie |= same_hash & np.isin(hashes[1:], hashes[same + 1][collides])
        if not tie.any():
            return order
        inside = np.zeros(len(order), np.bool_)
        inside[1:] = tie
        block_starts = ~inside
        inside[:-1] |= tie
        block = np.cumsum(block_starts)[inside]
        members = order[inside]
        subset = self.rows.take(pa.array(members))
        keys = [codes(subset.column(number)) for number in self.layout.key]
        ordered = [found[inside] for found in order_codes]
        others = {number for number, _ in self.layout.order} | set(self.layout.key)
        rest = [codes(subset.column(number)) for number in range(subset.num_columns) if number not in others]
        ranks = [block, *keys, *ordered, *rest, self.versions[members]]
        order = order.copy()
        order[inside] = members[np.lexsort(tuple(reversed(ranks)))]
        return order


def ranges(starts: Numbers, counts: Numbers) -> Numbers:
    """The integers from each start on, as many as its count, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: Numbers = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return found


def neighbours_differ(column: pa.Array) -> Flags:
    """For each row but the first, whether it differs from the one before it."""
    if is_plain(column.type):
        found = codes(column)
        flags: Flags = found[1:] != found[:-1]
        return flags
    rows = len(column)
    return pairs_differ(column.slice(1), column.slice(0, rows - 1))


def pairs_differ(left: pa.Array, right: pa.Array) -> Flags:
    """For each row of two arrays of one type, whether they differ. Nulls are equal to each other."""
    kind = left.type
    if is_plain(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind):
        found = codes(pa.concat_arrays([left, right]))
        flags: Flags = found[: len(left)] != found[len(left) :]
        return flags
    differ = compute().not_equal(left, right)
    if differ.null_count:
        differ = compute().coalesce(differ, compute().xor(left.is_null(), right.is_null()))
    unequal: Flags = differ.to_numpy(zero_copy_only=False)
    return unequal
