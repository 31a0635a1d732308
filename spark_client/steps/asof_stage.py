"""The stage of ``join(…, how="asof")``: each left row once, with the right side's row that is nearest in time.

Held rows
    The right side is read first. If the right side fits half of the budget, it is held, and the left side is streamed
    past it in the left's order. Otherwise both sides are sorted by key and time, in files (``spill.external_sort``),
    and read side by side: a part of the right's rows is in memory, and the left rows before its last row have their
    matches there. Of a part that is done, the next one gets the rows that later left rows may match: the last row, the
    first row of its time, and the row before that.

Memory
    The budget, and a result batch of about ``PIECE_BYTES``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import Declared, Picker, SortCodes, SortKey, array_over
from spark_client.joining import (
    INDEX_ROW_BYTES,
    TIMED_ROW_BYTES,
    AsOf,
    JoinPlan,
    MatchKeys,
    TimedRows,
    sizes_of,
)
from spark_client.placement import PlacedKeys
from spark_client.spill import TaskMemory, pieces, row_weights, sorted_batches

from .join_stage import checked
from .one_pass import Both, OwnStage, Pass, drained

_ROW_BYTES = INDEX_ROW_BYTES + TIMED_ROW_BYTES


@dataclass(frozen=True)
class AsofStage(OwnStage):
    """The as-of join of two inputs; ``plan`` is the left join's that has the result's columns. ``left_placed`` and
    ``right_placed`` are as for ``JoinStage``.
    """

    declared: Declared
    plan: JoinPlan
    as_of: AsOf
    left_placed: PlacedKeys | None = None
    right_placed: PlacedKeys | None = None

    divisible = False
    divisible_sides = frozenset({"left"})

    def run(self, both: Both, how: Pass) -> Iterator[Any]:
        """The join's rows.

        Raises:
            InvalidRequest: a row's key belongs to another partition.
            OutOfBudget: no room for the rows beyond the budget in the scratch directory.
        """
        name = self.declared.stage
        left = checked(both.left, self.left_placed, how, name)
        right = checked(both.right, self.right_placed, how, name)
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in right:
            held.append(batch)
            held_bytes += batch.nbytes + _ROW_BYTES * batch.num_rows
            if held_bytes > how.memory.budget_bytes // 2:
                yield from self._merge(left, chain(drained(held), right), how.memory)
                return
        rows = self._index_times(drained(held))
        for batch in left:
            yield from self._match(batch, rows)

    def _index_times(self, batches: Iterator[pa.RecordBatch]) -> TimedRows:
        side = self.plan.side(left=False)
        return TimedRows(list(batches), side.keys, side.schema, self.as_of)

    def _match(self, batch: pa.RecordBatch, rows: TimedRows) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        matches = rows.match(batch, self.plan.left)
        valid = matches >= 0
        ours = batch.select(self.plan.side(left=True).schema.names)
        weights = row_weights(ours) + sizes_of(rows.held.sizes, matches, valid)
        for start, end in pieces(weights):
            theirs = rows.held.take(matches[start:end], valid[start:end])
            yield self.plan.assembled(end - start, ours.slice(start, end - start), theirs)

    def _merge(
        self, left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch], memory: TaskMemory
    ) -> Iterator[pa.RecordBatch]:
        """Both sides by key and time, part by part of the right side."""
        with memory.part(memory.budget_bytes // 2) as half:
            rights = _Sorted(right, self.plan.right, self.as_of, half, left=False)
            lefts = _Sorted(left, self.plan.left, self.as_of, half, left=True)
            part_bytes = max(1, memory.budget_bytes // 8)
            carried: list[pa.RecordBatch] = []
            batch = lefts.next()
            while batch is not None:
                part = list(rights.part(part_bytes))
                rows: TimedRows | None = None
                bound = rights.last
                while batch is not None:
                    count = lefts.before(batch, bound) if part else batch.num_rows
                    if count:
                        rows = rows or self._index_times(iter([*carried, *part]))
                        yield from self._match(batch.slice(0, count), rows)
                    if count < batch.num_rows:
                        batch = batch.slice(count)
                        break
                    batch = lefts.next()
                carried = rights.carried([*carried, *part])


class _Sorted:
    """One side's rows, with their keys and times as further columns, by which they are sorted.

    Left rows that match nothing have nulls there; such right rows are left out.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        keys: MatchKeys,
        as_of: AsOf,
        memory: TaskMemory,
        *,
        left: bool,
    ) -> None:
        self._keys, self._as_of, self._left = keys, as_of, left
        self._order: list[SortKey] = []
        self._batches = self._in_order(batches, memory)
        self.last: tuple[Any, ...] = ()

    def _in_order(self, batches: Iterator[pa.RecordBatch], memory: TaskMemory) -> Iterator[pa.RecordBatch]:
        keyed = filter(len, map(self._with_keys, batches))
        first = next(keyed, None)
        if first is not None:
            yield from sorted_batches(chain([first], keyed), self._order, memory)

    def next(self) -> pa.RecordBatch | None:
        return next(self._batches, None)

    def part(self, size_bytes: int) -> Iterator[pa.RecordBatch]:
        """The next batches, of about this size; none at the end."""
        while size_bytes > 0 and (batch := self.next()) is not None:
            size_bytes -= batch.nbytes + _ROW_BYTES * batch.num_rows
            codes = SortCodes.of(batch, self._order)
            self.last = codes.place(codes.rows - 1)
            yield batch

    def before(self, batch: pa.RecordBatch, bound: tuple[Any, ...]) -> int:
        """How many of the batch's rows are before the bound, which is of the other side."""
        return SortCodes.of(batch, self._order).count_before(bound, equal=False)

    def carried(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Of these batches, which follow each other, the rows that later left rows may match."""
        less = equal = last = None
        for number, batch in enumerate(batches):
            before = self.before(batch, self.last)
            if before:
                less = number, before - 1
            if before < batch.num_rows:
                equal = equal or (number, before)
                last = number, batch.num_rows - 1
        chosen = sorted({each for each in (less, equal, last) if each is not None})
        return [pa.concat_batches([batches[number].slice(row, 1)]) for number, row in chosen]

    def _with_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, rows = self._keys.of(batch)
        times, valid = self._as_of.times(batch.column(self._as_of.left if self._left else self._as_of.right))
        columns = [*keys.columns, array_over(times if rows is None else times[rows])]
        complete = np.arange(batch.num_rows) if rows is None else rows
        if valid is not None:
            chosen = valid[complete]
            columns = [column.filter(_mask(chosen)) for column in columns]
            complete = complete[chosen]
        names = [f"\0{number}" for number in range(len(columns))]
        self._order = [SortKey(name) for name in names]
        if len(complete) < batch.num_rows:
            if self._left:
                at = np.full(batch.num_rows, -1, np.int64)
                at[complete] = np.arange(len(complete))
                columns = [column.take(pa.array(at, mask=at < 0)) for column in columns]
            else:
                batch = Picker(batch).take(complete)
        fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        return pa.RecordBatch.from_arrays(
            [*batch.columns, *columns], schema=pa.schema([*batch.schema, *fields])
        )


def _mask(chosen: NDArray[np.bool_]) -> pa.Array:
    return array_over(chosen.view(np.uint8)).cast(pa.bool_())
