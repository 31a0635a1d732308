"""The rows of several batches in the order of their partitions, to be cut into frames.

The batches are joined and their rows' positions sorted by partition, stably. A row is copied when its frame is made.

It holds one copy of the batches, and for each row 8 bytes for its position, plus 8 if rows differ in size. The
constructor takes 8 more for each row to sort, and 16 more to compute sizes that differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .row_picking import Picker
from .sizes import batch_row_bits, buffer_count, held_dictionaries

WORKING_BYTES_PER_ROW = 16
"""Bytes held for a row beside its data; temporary ones are fewer than those of the second copy."""

_ROUNDING_BYTES = 16
"""The most by which a buffer exceeds the sum of its rows: validity bits fill whole bytes, offsets have an end."""


class SortedRows:
    """The rows of `batches`, with an array of partitions in `ids` for each batch. Both lists are emptied, so that the
    batches are released once their rows have been copied.

    pyarrow.ArrowInvalid: one batch exceeds a dictionary's index type or a column's 32-bit offsets. The lists are
    unchanged.
    """

    def __init__(
        self, batches: list[pa.RecordBatch], ids: list[NDArray[Any]], partitions: int, schema: pa.Schema
    ) -> None:
        together = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        batches.clear()
        together = pa.RecordBatch.from_arrays(together.columns, schema=schema)
        row_ids = np.concatenate(ids)
        ids.clear()
        self.counts = np.bincount(row_ids, minlength=partitions)
        self._starts = np.concatenate([[0], np.cumsum(self.counts)])
        self._order = np.argsort(row_ids, kind="stable") if partitions > 1 else None
        self._sizes = _Sizes(together, self._order)
        self._rounding_bytes = _ROUNDING_BYTES * buffer_count(together)
        self.fixed_bytes = self._rounding_bytes + sum(held_dictionaries(together).values())
        self._together = together
        self._picker = Picker(together)

    def partition_bytes(self) -> NDArray[np.int64]:
        """The size of each partition's rows, without dictionaries."""
        return np.diff(self._sizes.before(self._starts)) // 8

    def frames(self, partition: int, target_bytes: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of one partition in frames, see *Sizes of frames* in `coalescer`."""
        start, end = self._starts[partition : partition + 2].tolist()
        max_bits = max(8 * (max_bytes - self._rounding_bytes), 1)
        for first, last in self._cuts(start, end, 8 * target_bytes, max_bits):
            if self._order is None:
                yield self._together.slice(first, last - first)
            else:
                yield self._picker.take(self._order[first:last])

    def rows_of(self, partitions: NDArray[np.bool_]) -> pa.RecordBatch:
        """A copy of the chosen partitions' rows, in order of partition."""
        if self._order is None:
            return pa.concat_batches([self._together])
        return self._picker.take(self._order[np.repeat(partitions, self.counts)])

    def _cuts(self, start: int, end: int, target_bits: int, max_bits: int) -> Iterator[tuple[int, int]]:
        first_bit, last_bit = self._sizes.before(np.array([start, end])).tolist()
        pieces = max((last_bit - first_bit) // target_bits, -(-(last_bit - first_bit) // max_bits), 1)
        ideal = first_bit + (last_bit - first_bit) * np.arange(1, pieces) // pieces
        bounds = [start, *self._sizes.find(ideal, start, end), end]
        sizes = np.diff(self._sizes.before(np.array(bounds))).tolist()
        for (first, last), bits in zip(pairwise(bounds), sizes, strict=True):
            if bits <= max_bits and first < last:
                yield first, last
                continue
            # Rows of very different sizes: a range is cut at the limit.
            while first < last:
                limit = self._sizes.before(np.array([first])) + max_bits
                cut = min(last, max(first + 1, self._sizes.find(limit, start, end)[0]))
                yield first, cut
                first = cut  # noqa: PLW2901  # the rest of this range


class _Sizes:
    """The sum of the bits of all sorted rows before a place."""

    def __init__(self, rows: pa.RecordBatch, order: NDArray[np.int64] | None) -> None:
        bits = batch_row_bits(rows)
        self._each = bits if isinstance(bits, int) else 0
        self._sums: NDArray[np.int64] | None = None
        if not isinstance(bits, int):
            self._sums = np.zeros(rows.num_rows + 1, np.int64)
            np.cumsum(bits if order is None else bits[order], out=self._sums[1:])

    def before(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return places * self._each if self._sums is None else self._sums[places]

    def find(self, bits: NDArray[np.int64], start: int, end: int) -> list[int]:
        """For each number of bits the last place before which the rows have at most as many."""
        if self._sums is not None:
            places = np.searchsorted(self._sums[start : end + 1], bits, side="right") + (start - 1)
        elif self._each:
            places = bits // self._each
        else:
            places = np.full(bits.shape, end)
        return list(np.clip(places, start, end).tolist())
