"""Joins a side that is held in memory with one that is streamed past it, batch by batch.

Guarantee: the rows are those of Spark's join (``join_keys`` says which keys are equal). A result batch has at most
``PIECE_ROWS`` rows and about ``PIECE_BYTES``, or one row, unless it is a batch of the streamed side with columns added:
the matches of a key are never together in memory.

Blocks
    A side that does not fit is held block by block, and the other is streamed past each. Whether a streamed row has
    a match is known after the last block: one bit for each streamed row is kept until then.

Memory
    The held rows, copied once, ``INDEX_ROW_BYTES`` for each (``key_index``), a piece of the result, and about 100 bytes
    for each row of a streamed batch, of which at most ``STREAMED_ROWS`` rows are looked up at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import Picker, cuts

from .held_rows import HeldRows, joined, largest, only, row_sizes, sizes_of
from .join_plan import JoinPlan
from .key_index import KeyIndex

Positions = NDArray[np.int64]

PIECE_ROWS = 64 * 1024
PIECE_BYTES = 4 * 1024 * 1024
STREAMED_ROWS = 256 * 1024


def expanded(shown: Positions, piece_rows: int = PIECE_ROWS) -> Iterator[tuple[Positions, Positions]]:
    """Each row ``shown`` times: for each piece of the result the rows' positions, and which time each is, from 0."""
    ends = np.cumsum(shown)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, piece_rows):
        stop = min(start + piece_rows, total)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left")) + 1
        begins = ends[first:last] - shown[first:last]
        lengths = np.minimum(ends[first:last], stop) - np.maximum(begins, start)
        rows = np.repeat(np.arange(first, last), lengths)
        yield rows, np.arange(start, stop) - np.repeat(begins, lengths)


class Probing:
    """One join, with ``held`` for its left side or its right side."""

    def __init__(self, plan: JoinPlan, *, holds_left: bool) -> None:
        self.plan = plan
        self.held_is_left = holds_left
        self.held_side = plan.side(left=holds_left)
        self.side = plan.side(left=not holds_left)
        self._matched: list[NDArray[np.uint8]] = []

    def hold(self, batches: Sequence[pa.RecordBatch]) -> HeldRows:
        return HeldRows(joined(batches), self.held_side.keys, self.held_side.schema)

    def run(
        self, held: HeldRows, batches: Iterable[pa.RecordBatch], *, first: bool = True, last: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """The result for this block of the held side; ``batches`` are the same, in the same order, for each block."""
        if not len(held) and not self.side.kept and self.plan.how != "anti":
            return  # nothing can match: the other side need not be read
        matched = np.zeros(held.index.entries, np.bool_)
        marks = self.held_side.kept or self.held_side.exists
        for number, batch in enumerate(_cut(batches)):
            keys, rows = self.side.keys.of(batch)
            entries = held.index.find(keys)
            if rows is not None:
                every = np.full(batch.num_rows, -1, np.int64)
                every[rows] = entries
                entries = every
            matches = entries >= 0
            if marks:
                matched[entries[matches]] = True
            if self.held_side.exists:
                continue
            ever = matches if first and last else self._ever(number, matches)
            if self.side.exists:
                if last:
                    chosen = np.flatnonzero(ever == (self.plan.how == "semi"))
                    yield from self._streamed_alone(batch, chosen)
                continue
            alone = ~ever if last and self.side.kept else None
            yield from self._pairs(held, batch, entries, matches, alone)
        if marks:
            yield from self._held_alone(held, matched)

    def _ever(self, number: int, matches: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which rows of the streamed batch of this number have had a match in any block so far."""
        bits = np.packbits(matches)
        if number == len(self._matched):
            self._matched.append(bits)
        else:
            self._matched[number] |= bits
        return np.unpackbits(self._matched[number], count=len(matches)).view(np.bool_)

    def _pairs(
        self,
        held: HeldRows,
        batch: pa.RecordBatch,
        entries: Positions,
        matches: NDArray[np.bool_],
        alone: NDArray[np.bool_] | None,
    ) -> Iterator[pa.RecordBatch]:
        shown = matches if alone is None else matches | alone
        streamed = only(batch, self.side.schema)
        picker: Picker | None = None
        sizes = row_sizes([streamed])
        widest = largest(sizes) + held.widest_bytes
        for rows, numbers in self._matches(held.index, entries, shown):
            valid = None if alone is None else matches[rows]
            pieces: Iterable[tuple[int, int]] = [(0, len(rows))]
            if widest * len(rows) > PIECE_BYTES:
                pieces = _pieces(sizes_of(sizes, rows) + sizes_of(held.sizes, numbers, valid))
            for start, end in pieces:
                piece, count = slice(start, end), end - start
                at = rows[piece]
                if count == batch.num_rows and (at == np.arange(count)).all():
                    ours = streamed
                else:
                    picker = picker or Picker(streamed)
                    ours = picker.take(at)
                theirs = held.take(numbers[piece], None if valid is None else valid[piece])
                yield self._assemble(count, ours, theirs)

    @staticmethod
    def _matches(
        index: KeyIndex, entries: Positions, shown: NDArray[np.bool_]
    ) -> Iterator[tuple[Positions, Positions]]:
        """The rows of the result: positions in the batch, and numbers of held rows, where there is one."""
        if not shown.any():
            return
        if index.is_unique:
            positions = np.flatnonzero(shown)
            for start in range(0, len(positions), PIECE_ROWS):
                rows = positions[start : start + PIECE_ROWS]
                yield rows, index.rows(entries[rows])
            return
        counts = np.maximum(index.counts(entries), shown)
        for rows, within in expanded(counts):
            yield rows, index.rows(entries[rows], within)

    def _streamed_alone(self, batch: pa.RecordBatch, rows: Positions) -> Iterator[pa.RecordBatch]:
        streamed = only(batch, self.side.schema)
        if len(rows) == batch.num_rows:
            picked = streamed
        elif len(rows):
            picked = Picker(streamed).take(rows)
        if len(rows):
            yield self._assemble(len(rows), picked, None)

    def _held_alone(self, held: HeldRows, matched: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        rows = held.index.rows_of(matched)
        if self.plan.how != "semi":
            every = np.ones(len(held), np.bool_)
            every[rows] = False
            rows = np.flatnonzero(every)
        for start in range(0, len(rows), PIECE_ROWS):
            window = rows[start : start + PIECE_ROWS]
            for first, last in _pieces(sizes_of(held.sizes, window)):
                yield self._assemble(last - first, None, held.take(window[first:last]))

    def _assemble(
        self, rows: int, streamed: pa.RecordBatch | None, held: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        left, right = (held, streamed) if self.held_is_left else (streamed, held)
        return self.plan.assembled(rows, left, right)


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, STREAMED_ROWS):
            yield batch.slice(start, STREAMED_ROWS) if batch.num_rows > STREAMED_ROWS else batch


def _pieces(sizes: Positions) -> Iterator[tuple[int, int]]:
    return cuts(np.concatenate([[0], np.cumsum(sizes)]), 0, len(sizes), PIECE_BYTES)
