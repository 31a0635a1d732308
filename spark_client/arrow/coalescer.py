"""Gathers the rows of many small batches into few large frames, one partition each, in bounded memory.

Guarantee: each row is returned once, in a `(partition, frame)` pair: a record batch whose rows are all of that
partition, in input order. After `finish` every row has been returned.

How
    Batches are buffered without a copy until they fill a round; their memory must not change meanwhile (see
    `own_memory`). Then the rows are sorted by partition (a stable radix sort) and copied out. Those of partitions
    with less than a whole frame begin the next round. With one partition nothing is sorted.

Sizes of frames
    A frame's size is its rows' *own* bytes (see `sizes`). A partition with at least `target_frame_bytes` is cut
    evenly into frames of one to two targets. No frame is above `max_frame_bytes`, unless it is a single row. Smaller
    frames appear at the end, and when the budget is full: then the largest partitions are returned first, until half
    of it is free. So many partitions of equal size get frames of about `budget_bytes / partitions`.

Memory
    `buffered_bytes` never exceeds `budget_bytes`. It counts each allocation that buffered rows keep alive, whole and
    once (a slice that would keep over an eighth more than its rows is copied), and the sort's working memory. The
    peak, while frames are taken, is

        2 * budget_bytes + one frame + the batch being added

    because a round copies its rows, and releases the originals before it copies again. A single row, or a batch's
    dictionaries, above half of the budget add twice their size. A frame shares only dictionaries with the coalescer,
    so the caller may keep it. (With one partition frames are slices of one copy.)

Dictionaries
    Batches with different dictionaries get a common one. If the index type is too small for it, frames are smaller,
    each with a dictionary that fits. When the dictionaries take more than half of the budget, no rows are kept for
    the next round: a common dictionary would grow without bound.

Without columns only counts are kept: each partition gets one frame, at the end. A partition without rows gets none.

Use
    Frames are made while they are taken: all of one call must be taken before the next. After an error meanwhile
    every later call raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .sizes import check_type, has_dictionary, held_buffers, held_dictionaries, own_bytes
from .sorted_rows import WORKING_BYTES_PER_ROW, SortedRows

MIB = 1024 * 1024

Frames = Iterator[tuple[int, pa.RecordBatch]]


class Coalescer:
    """See the module. TypeError: the schema's rows cannot be moved one by one (views, unions, run-end encoding).
    ValueError: a number is not positive, or `max_frame_bytes` is below the target.
    """

    def __init__(
        self,
        schema: pa.Schema,
        partitions: int,
        *,
        budget_bytes: int = 128 * MIB,
        target_frame_bytes: int = 2 * MIB,
        max_frame_bytes: int = 3 * MIB,
    ) -> None:
        if partitions < 1 or target_frame_bytes < 1 or budget_bytes < 1:
            raise ValueError("the number of partitions, the target and the budget must be positive")
        if max_frame_bytes < target_frame_bytes:
            raise ValueError(f"max_frame_bytes={max_frame_bytes} is below {target_frame_bytes=}")
        for field in schema:
            check_type(field.type, field.name)
        self.schema = schema
        self.partitions = partitions
        self.budget_bytes = budget_bytes
        self._target_bytes = target_frame_bytes
        self._max_bytes = max_frame_bytes
        self._has_dictionaries = any(has_dictionary(field.type) for field in schema)
        # Two frames for each partition are enough; more would only take memory.
        self._round_bytes = min(budget_bytes // 2, 2 * target_frame_bytes * partitions)
        self._id_type = np.dtype(_smallest_unsigned(partitions))
        self._row_bytes = WORKING_BYTES_PER_ROW + self._id_type.itemsize
        self._rows = np.zeros(partitions, np.int64)
        self._kept: pa.RecordBatch | None = None
        self._kept_rows = np.zeros(partitions, np.int64)
        self._kept_bytes = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_ids: list[NDArray[Any]] = []
        self._pending_bytes = 0
        self._held: dict[int, int] = {}
        self._state = "ready"

    @property
    def buffered_bytes(self) -> int:
        """The memory held between calls, see *Memory*."""
        return self._kept_bytes + self._pending_bytes

    @property
    def rows(self) -> NDArray[np.int64]:
        """The number of rows added to each partition so far."""
        return self._rows.copy()

    def add(self, batch: pa.RecordBatch, ids: NDArray[Any] | None = None) -> Frames:
        """Add the batch; iterate over the result, the frames that are due now. `ids` is optional with one partition.

        ValueError: the schema differs, or `ids` is not one partition, of any integer type, for each row.
        RuntimeError: see *Use*; or the coalescer is finished.
        """
        self._check_ready()
        if not batch.schema.equals(self.schema):
            raise ValueError(f"the batch has another schema: {_difference(self.schema, batch.schema)}")
        checked = self._check_ids(ids, batch.num_rows)
        self._rows += np.bincount(checked, minlength=self.partitions)
        return self._run(self._add(batch, checked), after="ready")

    def finish(self) -> Frames:
        """Finish; iterate over the result, the remaining rows. RuntimeError as :meth:`add`."""
        self._check_ready()
        frames = self._gather(everything=True) if self.schema.names else self._bare_rows()
        return self._run(frames, after="finished")

    def _add(self, batch: pa.RecordBatch, ids: NDArray[Any]) -> Frames:
        if not batch.num_rows or not batch.num_columns:
            return
        pieces = list(self._pieces(batch))
        start = 0
        for piece in pieces:
            piece_ids = ids[start : start + piece.num_rows]
            start += piece.num_rows
            if self._pending and self._pending_bytes + self._cost_bytes(piece) > self._round_bytes:
                yield from self._gather()
            # Each piece of a large batch is sorted at once: buffered, it would keep all of it alive.
            self._hold(piece, piece_ids, passing=len(pieces) > 1)
            if len(pieces) > 1 or self._pending_bytes >= self._round_bytes:
                yield from self._gather()

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch, halved until each piece fits a round or is a single row."""
        if batch.num_rows == 1 or self._size_bytes(batch) <= self._round_bytes:
            yield batch
        else:
            half = batch.num_rows // 2
            yield from self._pieces(batch.slice(0, half))
            yield from self._pieces(batch.slice(half))

    def _hold(self, batch: pa.RecordBatch, ids: NDArray[Any], *, passing: bool) -> None:
        held = self._new(held_buffers(batch))
        if passing:
            held = {0: self._own_bytes(batch)}
        elif sum(held.values()) > _most_held_bytes(self._size_bytes(batch)):
            batch = pa.concat_batches([batch])
            held = held_buffers(batch)
        held |= self._new_dictionaries(batch)
        self._held |= held
        self._pending.append(batch)
        self._pending_ids.append(ids)
        self._pending_bytes += sum(held.values()) + self._row_bytes * batch.num_rows

    def _own_bytes(self, batch: pa.RecordBatch) -> int:
        return own_bytes(batch) if self._has_dictionaries else int(batch.nbytes)

    def _size_bytes(self, batch: pa.RecordBatch) -> int:
        return self._own_bytes(batch) + self._row_bytes * int(batch.num_rows)

    def _cost_bytes(self, batch: pa.RecordBatch) -> int:
        """The most by which holding the batch increases `buffered_bytes`."""
        return _most_held_bytes(self._size_bytes(batch)) + sum(self._new_dictionaries(batch).values())

    def _new_dictionaries(self, batch: pa.RecordBatch) -> dict[int, int]:
        return self._new(held_dictionaries(batch)) if self._has_dictionaries else {}

    def _new(self, allocations: dict[int, int]) -> dict[int, int]:
        return {address: size for address, size in allocations.items() if address not in self._held}

    def _gather(self, *, everything: bool = False) -> Frames:
        """One round: sort the buffered rows and return whole frames; keep the rest, or return it if `everything`."""
        batches, ids = self._pending, self._pending_ids
        if self._kept is not None:
            batches.insert(0, self._kept)
            ids.insert(0, np.repeat(np.arange(self.partitions, dtype=self._id_type), self._kept_rows))
        self._kept, self._kept_bytes = None, 0
        self._pending, self._pending_ids, self._pending_bytes = [], [], 0
        self._held = {}
        if batches:
            yield from self._sort(batches, ids, everything=everything)

    def _sort(self, batches: list[pa.RecordBatch], ids: list[NDArray[Any]], *, everything: bool) -> Frames:
        try:
            rows = SortedRows(batches, ids, self.partitions, self.schema)
        except pa.ArrowInvalid:
            if len(batches) == 1:
                raise
            half = len(batches) // 2
            yield from self._sort(batches[:half], ids[:half], everything=True)
            yield from self._sort(batches[half:], ids[half:], everything=everything)
            return
        kept = np.zeros(self.partitions, np.bool_)
        if not everything:
            kept = self._choose(rows)
            self._keep(rows, kept)
        for partition in np.flatnonzero(~kept & (rows.counts > 0)).tolist():
            for frame in rows.frames(partition, self._target_bytes, self._max_bytes):
                yield partition, frame

    def _choose(self, rows: SortedRows) -> NDArray[np.bool_]:
        """The partitions to keep: those below one frame, smallest first, as many as fit half of the budget."""
        data_bytes = rows.partition_bytes()
        costs = data_bytes + rows.counts * self._row_bytes
        smallest_first = np.argsort(costs, kind="stable")
        fit = np.cumsum(costs[smallest_first]) <= self.budget_bytes // 2 - rows.fixed_bytes
        kept = np.zeros(self.partitions, np.bool_)
        kept[smallest_first[fit]] = True
        return kept & (data_bytes < self._target_bytes) & (rows.counts > 0)

    def _keep(self, rows: SortedRows, partitions: NDArray[np.bool_]) -> None:
        if not partitions.any():
            return
        self._kept = rows.rows_of(partitions)
        self._kept_rows = np.where(partitions, rows.counts, 0)
        self._held = held_buffers(self._kept) | held_dictionaries(self._kept)
        self._kept_bytes = sum(self._held.values()) + self._row_bytes * self._kept.num_rows

    def _bare_rows(self) -> Frames:
        """The frames of a schema without columns."""
        for partition in np.flatnonzero(self._rows).tolist():
            nothing = pa.StructArray.from_buffers(pa.struct([]), int(self._rows[partition]), [None])
            frame = pa.RecordBatch.from_struct_array(nothing)
            yield partition, frame.replace_schema_metadata(self.schema.metadata)

    def _check_ready(self) -> None:
        if self._state == "finished":
            raise RuntimeError("this coalescer is finished: make a new one for more rows")
        if self._state == "taking":
            raise RuntimeError("the frames of an earlier call were not all taken: iterate over them first")

    def _check_ids(self, ids: NDArray[Any] | None, rows: int) -> NDArray[Any]:
        if ids is None:
            if self.partitions > 1:
                raise ValueError(f"the partition of each row is needed: there are {self.partitions}")
            return np.zeros(rows, self._id_type)
        if ids.dtype.kind not in "iu" or ids.shape != (rows,):
            raise ValueError(f"{rows} rows need as many integers for partitions, not {ids.dtype}{ids.shape}")
        if rows and not 0 <= ids.min() <= ids.max() < self.partitions:
            raise ValueError(
                f"partitions run from 0 to {self.partitions - 1}, ids from {ids.min()} to {ids.max()}"
            )
        return ids.astype(self._id_type)

    def _run(self, frames: Frames, *, after: str) -> Frames:
        self._state = "taking"
        return self._taken(frames, after)

    def _taken(self, frames: Frames, after: str) -> Frames:
        yield from frames
        self._state = after


def _most_held_bytes(size_bytes: int) -> int:
    """What rows of this size may keep alive without a copy: an eighth more, for padding and trims."""
    return size_bytes + size_bytes // 8


def _smallest_unsigned(partitions: int) -> type[np.unsignedinteger[Any]]:
    # numpy sorts integers of one and two bytes by radix.
    return np.uint8 if partitions <= 1 << 8 else np.uint16 if partitions <= 1 << 16 else np.uint32


def _difference(expected: pa.Schema, actual: pa.Schema) -> str:
    if expected.names != actual.names:
        return f"columns {actual.names} instead of {expected.names}"
    for wanted, field in zip(expected, actual, strict=True):
        if not field.equals(wanted):
            return f"the column {field.name!r} is {field} instead of {wanted}"
    return f"{actual} instead of {expected}"
