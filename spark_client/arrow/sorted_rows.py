"""The rows of many batches by partition, to be cut into frames.

Batches are sorted in blocks. The rows of a block are joined and copied in the order of their partitions, once, while
they fit a core's cache: copying rows of 200 partitions out of 30 MB takes three times as long. A frame joins its
partition's rows of all blocks, which lie side by side there.

A block holds one copy of its rows, and 16 bytes for each partition. To sort it takes another copy, and 8 bytes for
each row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .row_picking import Picker
from .sizes import batch_bits_before, buffer_count, held_buffers, held_dictionaries

WORKING_BYTES_PER_ROW = 8
"""Bytes taken for a row beside its data, until its block is sorted."""

_ROUNDING_BYTES = 16
"""The most by which a buffer exceeds the sum of its rows: validity bits fill whole bytes, offsets have an end."""

_PADDING_BYTES = 64
"""Arrow allocates at most so much beyond a buffer's size."""


class PartitionedRows:
    """Rows in the order of their partitions: those of partition ``p`` begin at ``bounds[p]``."""

    def __init__(self, rows: pa.RecordBatch, bounds: NDArray[np.int64]) -> None:
        self.rows = rows
        self.bounds = bounds
        self.bits = batch_bits_before(rows, bounds)
        self.dictionaries = held_dictionaries(rows)
        self.held = held_buffers(rows) | self.dictionaries
        self.size_bytes = bounds.nbytes + self.bits.nbytes + _PADDING_BYTES * len(self.held)

    @classmethod
    def sort(
        cls, batches: list[pa.RecordBatch], ids: list[NDArray[Any]], partitions: int, schema: pa.Schema
    ) -> PartitionedRows:
        """From batches and each row's partition; with one partition the rows may be those of the batch, not copied.
        Both lists are emptied, so that the batches are released.

        pyarrow.ArrowInvalid: a dictionary's index type or a column's 32-bit offsets do not suffice. The lists are
        unchanged.
        """
        row_ids = ids[0] if len(ids) == 1 else np.concatenate(ids)
        order = np.argsort(row_ids, kind="stable") if partitions > 1 else None
        together = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        batches.clear()
        ids.clear()
        if order is not None:
            together = Picker(together).take(order)
        bounds = np.zeros(partitions + 1, np.int64)
        np.cumsum(np.bincount(row_ids, minlength=partitions), out=bounds[1:])
        return cls(pa.RecordBatch.from_arrays(together.columns, schema=schema), bounds)

    def ids(self, kind: np.dtype[Any]) -> NDArray[Any]:
        return np.repeat(np.arange(len(self.bounds) - 1, dtype=kind), np.diff(self.bounds))

    def bits_before(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bits of the rows from the first place to before each one."""
        bits = batch_bits_before(self.rows, places)
        bits -= bits[0]
        return bits


class SortedRows:
    """The rows of blocks with as many partitions, in the order of the blocks."""

    def __init__(self, blocks: list[PartitionedRows]) -> None:
        # As Python's integers: there are a few steps for each partition of each block.
        self._parts = [(block, block.bounds.tolist(), block.bits.tolist()) for block in blocks]
        self.counts: NDArray[np.int64] = np.sum([np.diff(block.bounds) for block in blocks], axis=0)
        self._bits: NDArray[np.int64] = np.sum([np.diff(block.bits) for block in blocks], axis=0)
        self._rounding_bytes = _ROUNDING_BYTES * buffer_count(blocks[0].rows)
        dictionaries: dict[int, int] = {}
        for block in blocks:
            dictionaries |= block.dictionaries
        self.fixed_bytes = self._rounding_bytes + sum(dictionaries.values())

    def partition_bytes(self) -> NDArray[np.int64]:
        """The size of each partition's rows, without dictionaries."""
        return self._bits // 8

    def frames(self, partition: int, target_bytes: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of one partition in frames, see *Sizes of frames* in `coalescer`. They share dictionaries only."""
        max_bits = max(8 * (max_bytes - self._rounding_bytes), 1)
        bits = int(self._bits[partition])
        pieces = max(bits // (8 * target_bytes), -(-bits // max_bits), 1)
        if pieces == 1:
            yield from _join(list(self._slices(partition)))
            return
        run = _Run(
            [
                (block, bounds[partition], bounds[partition + 1], sums[partition + 1] - sums[partition])
                for block, bounds, sums in self._parts
                if bounds[partition] < bounds[partition + 1]
            ]
        )
        for first, last in run.cuts(pieces, max_bits):
            yield from _join(run.slices(first, last))

    def rows_of(self, partitions: NDArray[np.bool_]) -> PartitionedRows:
        """A copy of the chosen partitions' rows. ArrowInvalid: as :meth:`PartitionedRows.sort`."""
        slices = [
            each for partition in np.flatnonzero(partitions).tolist() for each in self._slices(partition)
        ]
        bounds = np.zeros(len(partitions) + 1, np.int64)
        np.cumsum(np.where(partitions, self.counts, 0), out=bounds[1:])
        return PartitionedRows(pa.concat_batches(slices), bounds)

    def _slices(self, partition: int) -> Iterator[pa.RecordBatch]:
        for block, bounds, _ in self._parts:
            start, end = bounds[partition], bounds[partition + 1]
            if start < end:
                yield block.rows.slice(start, end - start)


class _Run:
    """A partition's rows, numbered through, in parts: blocks, with the bounds and the bits of the rows there."""

    def __init__(self, parts: list[tuple[PartitionedRows, int, int, int]]) -> None:
        self._parts = parts
        self._rows = [0, *accumulate([end - start for _, start, end, _ in parts])]
        self._bits = [0, *accumulate([bits for *_, bits in parts])]

    def cuts(self, pieces: int, max_bits: int) -> Iterator[tuple[int, int]]:
        """The bounds of so many pieces of about equal size, or more where one would have more than ``max_bits``."""
        bits = self._bits[-1]
        inner = [self._find(bits * piece // pieces) for piece in range(1, pieces)]
        bounds = [(0, 0), *inner, (self._rows[-1], bits)]
        for (first, before), (last, until) in pairwise(bounds):
            # Rows of very different sizes: a range is cut at the limit.
            while first < last:
                cut, cut_bits = last, until
                if until - before > max_bits:
                    cut, cut_bits = self._find(before + max_bits)
                    if cut == first:
                        cut, cut_bits = self._find_row(first + 1)
                yield first, cut
                first, before = cut, cut_bits  # noqa: PLW2901  # the rest of this range

    def slices(self, first: int, last: int) -> list[pa.RecordBatch]:
        """The rows from ``first`` to before ``last``, not copied."""
        found = []
        for (block, start, _, _), (begin, end) in zip(self._parts, pairwise(self._rows), strict=True):
            low, high = max(first, begin), min(last, end)
            if low < high:
                found.append(block.rows.slice(start + low - begin, high - low))
        return found

    def _find_row(self, row: int) -> tuple[int, int]:
        """The row, and the bits of the rows before it."""
        part = min(bisect_right(self._rows, row), len(self._parts)) - 1
        block, start, _, _ = self._parts[part]
        inside = block.bits_before(np.array([start, start + row - self._rows[part]]))
        return row, self._bits[part] + int(inside[1])

    def _find(self, bits: int) -> tuple[int, int]:
        """The last row before which the rows have at most as many bits, and those that they have."""
        part = min(bisect_right(self._bits, bits), len(self._parts)) - 1
        block, start, end, _ = self._parts[part]
        inside = block.bits_before(np.arange(start, end + 1))
        place = int(np.searchsorted(inside, bits - self._bits[part], side="right")) - 1
        return self._rows[part] + place, self._bits[part] + int(inside[place])


def _join(slices: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A copy of the rows in one batch, or in several if a common dictionary has too many values."""
    try:
        yield pa.concat_batches(slices)
    except pa.ArrowInvalid:
        if len(slices) == 1:
            raise
        half = len(slices) // 2
        yield from _join(slices[:half])
        yield from _join(slices[half:])
