"""Gathers the rows of many small batches into few large frames, one partition each, in bounded memory.

Guarantee: each row is returned once, in a `(partition, frame)` pair: a record batch whose rows are all of that
partition, in input order. After `finish` every row has been returned.

How
    Batches are buffered without a copy until they fill a block (`block_bytes`, and for each partition `block_rows` or
    64 times as many bytes: joining less costs more than the processor's cache saves); their memory must not change
    meanwhile (see `own_memory`). A block's rows are sorted by partition (a stable radix sort), and copied while they
    are in the cache. When the blocks fill a round, a frame joins the rows of its partition. Those of partitions with
    less than a whole frame begin the next round, if they are few. With one partition nothing is sorted.

    The rows of a block are joined and copied once, while they fit a core's cache: copying rows of 200 partitions out of
    30 MB takes three times as long. A block holds one copy of its rows, and 16 bytes for each partition. To sort it
    takes another copy, and 8 bytes for each row.

Sizes of frames
    A frame's size is its rows' *own* bytes (see `sizes`). A partition with at least `target_frame_bytes` is cut
    evenly into frames of one to two targets. No frame is above `max_frame_bytes`, unless it is a single row. Smaller
    frames appear at the end, and when the budget is full: then the largest partitions are returned, until seven
    eighths of it are free. So many partitions of equal size get frames of about `budget_bytes / partitions`, and only
    an eighth of all rows is copied again.

Memory
    `buffered_bytes` never exceeds `budget_bytes`. It counts each allocation that buffered rows keep alive, whole and
    once (a slice that would keep over an eighth more than its rows is copied), and the sort's working memory. The
    peak, while frames are taken, is

        2 * budget_bytes + one frame + the batch being added

    because a block is a copy of its rows, and with many partitions a whole round is one block. With small blocks it is
    9/8 of the budget, one frame and the batch being added. A single row above half of the budget adds twice its size. A
    frame shares nothing with the coalescer, so the caller may keep it.

Without columns only counts are kept: each partition gets one frame, at the end. A partition without rows gets none.

Use
    Frames are made while they are taken: all of one call must be taken before the next. After an error meanwhile
    the coalescer is unusable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .numbered_rows import Picker
from .sizes import (
    batch_bits_before,
    buffer_count,
    check_type,
    held_buffers,
)

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
        self.held = held_buffers(rows)
        self.size_bytes = bounds.nbytes + self.bits.nbytes + _PADDING_BYTES * len(self.held)

    @classmethod
    def sort(
        cls, batches: list[pa.RecordBatch], ids: list[NDArray[Any]], partitions: int, schema: pa.Schema
    ) -> PartitionedRows:
        """From batches and each row's partition; with one partition the rows may be those of the batch, not copied.
        Both lists are emptied, so that the batches are released.
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
        self.rounding_bytes = _ROUNDING_BYTES * buffer_count(blocks[0].rows)

    def partition_bytes(self) -> NDArray[np.int64]:
        """The size of each partition's rows."""
        return self._bits // 8

    def frames(self, partition: int, target_bytes: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of one partition in frames, see *Sizes of frames* in `coalescer`."""
        max_bits = max(8 * (max_bytes - self.rounding_bytes), 1)
        bits = int(self._bits[partition])
        pieces = max(bits // (8 * target_bytes), -(-bits // max_bits), 1)
        if pieces == 1:
            yield pa.concat_batches(list(self._slices(partition)))
            return
        run = _Run(
            [
                (block, bounds[partition], bounds[partition + 1], sums[partition + 1] - sums[partition])
                for block, bounds, sums in self._parts
                if bounds[partition] < bounds[partition + 1]
            ]
        )
        for first, last in run.cuts(pieces, max_bits):
            yield pa.concat_batches(run.slices(first, last))

    def rows_of(self, partitions: NDArray[np.bool_]) -> PartitionedRows:
        """A copy of the chosen partitions' rows."""
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
        slices = []
        for (block, start, _, _), (begin, end) in zip(self._parts, pairwise(self._rows), strict=True):
            low, high = max(first, begin), min(last, end)
            if low < high:
                slices.append(block.rows.slice(start + low - begin, high - low))
        return slices

    def _find_row(self, row: int) -> tuple[int, int]:
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


MIB = 1024 * 1024
BLOCK_BYTES = 1 * MIB
BLOCK_ROWS = 1024
_WIDE_ROW_BYTES = 64
_KEPT = 8
"""The rows that begin the next round may take this part of the budget."""

Frames = Iterator[tuple[int, pa.RecordBatch]]


class Coalescer:
    """One gathering.

    TypeError: the schema's rows cannot be moved one by one (views, unions, run-end encoding).
    """

    def __init__(
        self,
        schema: pa.Schema,
        partitions: int,
        *,
        budget_bytes: int = 128 * MIB,
        target_frame_bytes: int = 2 * MIB,
        max_frame_bytes: int = 3 * MIB,
        block_bytes: int = BLOCK_BYTES,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        for field in schema:
            check_type(field.type, field.name)
        self.schema = schema
        self.partitions = partitions
        self.budget_bytes = budget_bytes
        self._target_bytes = target_frame_bytes
        self._max_bytes = max_frame_bytes
        self._block_least_bytes = block_bytes
        self._block_rows = block_rows * partitions
        # Two frames for each partition are enough; more would only take memory.
        self._round_bytes = min(budget_bytes, 2 * target_frame_bytes * partitions)
        # The largest piece of a batch, and the rest of the round for it.
        self._piece_bytes = max(1, self._round_bytes // 2)
        # numpy sorts integers of one and two bytes by radix.
        self._id_type = np.min_scalar_type(partitions - 1)
        self._row_bytes = WORKING_BYTES_PER_ROW + self._id_type.itemsize
        self._rows = np.zeros(partitions, np.int64)
        self._blocks: list[PartitionedRows] = []
        self._block_bytes = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_ids: list[NDArray[Any]] = []
        self._pending_bytes = 0
        self._pending_rows = 0
        self._held: dict[int, int] = {}

    @property
    def buffered_bytes(self) -> int:
        """The memory held between calls, see *Memory*."""
        return self._block_bytes + self._pending_bytes

    def add(self, batch: pa.RecordBatch, ids: NDArray[Any] | None = None) -> Frames:
        """Add the batch; iterate over the result, the frames that are due now. `ids`: the partition of each row, of any
        integer type; optional with one partition.
        """
        ids = np.zeros(batch.num_rows, self._id_type) if ids is None else ids.astype(self._id_type)
        self._rows += np.bincount(ids, minlength=self.partitions)
        return self._add(batch, ids)

    def finish(self) -> Frames:
        """Finish; iterate over the result, the remaining rows."""
        return self._gather(everything=True) if self.schema.names else self._bare_rows()

    def _add(self, batch: pa.RecordBatch, ids: NDArray[Any]) -> Frames:
        if not batch.num_rows or not batch.num_columns:
            return
        pieces = self._pieces(batch)
        # Each piece of a large batch is sorted at once: buffered, it would keep all of it alive.
        passing = len(pieces) > 1
        start = 0
        for piece, size_bytes in pieces:
            piece_ids = ids[start : start + piece.num_rows]
            start += piece.num_rows
            # The most by which holding it increases `buffered_bytes`.
            cost_bytes = _most_held_bytes(size_bytes)
            if self.buffered_bytes and self.buffered_bytes + cost_bytes > self._round_bytes:
                yield from self._gather()
            self._hold(piece, piece_ids, size_bytes, passing=passing)
            if passing or self._is_block():
                self._sort()
            if self.buffered_bytes >= self._round_bytes:
                yield from self._gather()

    def _pieces(self, batch: pa.RecordBatch) -> list[tuple[pa.RecordBatch, int]]:
        """The batch, halved until each piece fits half of a round or is a single row; with the pieces' sizes."""
        size_bytes = int(batch.nbytes) + self._row_bytes * batch.num_rows
        if batch.num_rows == 1 or size_bytes <= self._piece_bytes:
            return [(batch, size_bytes)]
        half = batch.num_rows // 2
        return self._pieces(batch.slice(0, half)) + self._pieces(batch.slice(half))

    def _hold(self, batch: pa.RecordBatch, ids: NDArray[Any], size_bytes: int, *, passing: bool) -> None:
        if passing and self.partitions > 1:
            held = {0: size_bytes}
        else:
            held = self._new(held_buffers(batch))
            if passing or sum(held.values()) > _most_held_bytes(size_bytes):
                batch = pa.concat_batches([batch])
                held = held_buffers(batch)
        self._held |= held
        self._pending.append(batch)
        self._pending_ids.append(ids)
        self._pending_bytes += sum(held.values()) + self._row_bytes * batch.num_rows
        self._pending_rows += batch.num_rows

    def _is_block(self) -> bool:
        """Whether the pending batches are enough to be sorted."""
        data_bytes = self._pending_bytes - self._row_bytes * self._pending_rows
        if data_bytes < self._block_least_bytes:
            return False
        return max(self._pending_rows, data_bytes // _WIDE_ROW_BYTES) >= self._block_rows

    def _sort(self) -> None:
        """Make a block of the pending batches."""
        batches, ids, pending_bytes = self._pending, self._pending_ids, self._pending_bytes
        self._pending, self._pending_ids, self._pending_bytes, self._pending_rows = [], [], 0, 0
        if not batches:
            return
        if self.partitions == 1:
            for batch in batches:
                rows = pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
                self._blocks.append(PartitionedRows(rows, np.array([0, batch.num_rows])))
            self._block_bytes += pending_bytes
            return
        block = PartitionedRows.sort(batches, ids, self.partitions, self.schema)
        self._blocks.append(block)
        self._held = block.held
        self._block_bytes += block.size_bytes + sum(block.held.values())

    def _new(self, allocations: dict[int, int]) -> dict[int, int]:
        return {address: size for address, size in allocations.items() if address not in self._held}

    def _gather(self, *, everything: bool = False) -> Frames:
        """One round: return whole frames of the buffered rows; keep the rest, or return it if `everything`."""
        self._sort()
        blocks, self._blocks, self._block_bytes, self._held = self._blocks, [], 0, {}
        if not blocks:
            return
        rows = SortedRows(blocks)
        kept = np.zeros(self.partitions, np.bool_) if everything else self._choose(rows)
        if kept.any():
            self._keep(rows, kept)
        for partition in np.flatnonzero(~kept & (rows.counts > 0)).tolist():
            for frame in rows.frames(partition, self._target_bytes, self._max_bytes):
                yield partition, frame

    def _choose(self, rows: SortedRows) -> NDArray[np.bool_]:
        """The partitions to keep: those below one frame, smallest first, as many as fit their part of the budget."""
        data_bytes = rows.partition_bytes()
        smallest_first = np.argsort(data_bytes, kind="stable")
        most_bytes = self._round_bytes // _KEPT - rows.rounding_bytes
        kept = np.zeros(self.partitions, np.bool_)
        kept[smallest_first[np.cumsum(data_bytes[smallest_first]) <= most_bytes]] = True
        kept &= (data_bytes < self._target_bytes) & (rows.counts > 0)
        return kept

    def _keep(self, rows: SortedRows, partitions: NDArray[np.bool_]) -> None:
        """Let these partitions begin the next round."""
        block = rows.rows_of(partitions)
        self._blocks = [block]
        self._held = dict(block.held)
        self._block_bytes = sum(block.held.values()) + block.size_bytes

    def _bare_rows(self) -> Frames:
        for partition in np.flatnonzero(self._rows).tolist():
            nothing = pa.StructArray.from_buffers(pa.struct([]), int(self._rows[partition]), [None])
            frame = pa.RecordBatch.from_struct_array(nothing)
            yield partition, frame.replace_schema_metadata(self.schema.metadata)


def _most_held_bytes(size_bytes: int) -> int:
    """Rows of this size may keep so much alive without a copy: an eighth more, for padding and trims."""
    return size_bytes + size_bytes // 8
