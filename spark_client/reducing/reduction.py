"""Reduces rows to one row for each group, a bounded number of rows at a time.

Guarantee: :meth:`Reduction.merge` gives one row for each group of its rows, groups in the order of their first rows, or
of their keys. Keys are equal as in ``arrow.group_codes``; -0.0 becomes 0.0, as in Spark's GROUP BY.

How
    Rows in the order of their keys need no hash table. Others are merged by Arrow's hash aggregation over the key
    columns themselves, where every key is plain and every state has a kernel; it takes a third of the time of codes for
    the groups. Otherwise each row gets its group's code first.

    A batch's groups fit a core's cache, and those of many batches do not: where rows of one group are near each other,
    as in files in the order of their keys, each batch is merged first (:meth:`Reduction.lifted`). It takes half of the
    time, and there may be nothing left to do.

Memory of :meth:`Reduction.reduced`
    A merge holds its rows, Arrow's hash table, which copies the keys and doubles as it grows, and the result. So rows
    count with ``MERGED_COPIES`` times their bytes and ``MERGED_ROW_BYTES`` each (:func:`merge_bytes`), which a merge
    takes if no two rows are of one group. Rows are gathered up to ``CHUNK_BYTES``, or as many as the groups found so
    far have, but at most until they and the groups count as much as the budget. Groups that count more than half of it
    are given on.

Rows that do not reduce
    If a merge leaves more than a third of the bytes of its rows, as with keys that do not repeat or with lists of all
    values, merging costs more than it saves: all later rows are given on as they are, one state for each row, as in
    DataFusion and Spark.

Rows in the order of their keys
    So are those of a file that was written in this order: the rows of a group are neighbours. Their merge takes a third
    of the time where groups have four rows; to see that rows are in another order takes a hundredth.
    :meth:`RowsInOrder.of` finds an order only where each group's rows are neighbours: all keys are whole numbers, days
    or instants without nulls, the first one never falls from a row to the next, and the others change only with it.
    Batches may come in another order than that of their keys, as from several tasks, if their ranges do not overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import canonical, compute, flags
from spark_client.arrow import Lent, aligned, array_over, decimal_halves, group_codes, own, values

from .group_states import StateColumn, first_rows

_MOST_DIGITS = 38
_MOST_LONG = (1 << 63) - 1


@dataclass(frozen=True)
class RowsInOrder:
    """Rows, and the first one of each group."""

    table: pa.Table
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], schema: pa.Schema, keys: int) -> RowsInOrder | None:
        """The rows of the batches, whose first ``keys`` columns are the keys; None if they are in no such order."""
        if not keys or not all(_is_whole(kind) for kind in schema.types[:keys]):
            return None
        ordered = _ordered([batch for batch in batches if batch.num_rows])
        if not ordered:
            return None
        table = pa.Table.from_batches(ordered, schema)
        if any(table.column(index).null_count for index in range(keys)):
            return None
        first = _numbers(table.column(0))
        if (first[1:] < first[:-1]).any():
            return None
        changes = first[1:] != first[:-1]
        for index in range(1, keys):
            other = _numbers(table.column(index))
            if ((other[1:] != other[:-1]) & ~changes).any():
                return None
        return cls(table, np.flatnonzero(np.concatenate([[True], changes])))

    @property
    def are_merged(self) -> bool:
        """Whether no two rows are of one group."""
        return len(self.starts) == int(self.table.num_rows)

    def firsts(self, index: int) -> Any:
        """The values of a column in the groups' first rows."""
        column = self.table.column(index)
        return column if self.are_merged else column.take(array_over(self.starts))

    def merged(self, kernel: str, column: Any) -> Any:
        """Each group's result of Arrow's kernel, over a column of the rows; None for kernels and types that only
        Arrow's own aggregation has. A sum of decimals may have more digits than the column's type.
        """
        find = _KERNELS.get(kernel)
        if find is None:
            return None
        kind = column.type
        array = _one(column)
        valid = flags(array.is_valid()) if array.null_count else None
        present = None if valid is None else np.logical_or.reduceat(valid, self.starts)
        if kernel != "sum":
            if not _is_whole(kind):
                return None
            numbers = _whole(array)
            bounds = np.iinfo(numbers.dtype)
            empty = bounds.max if kernel == "min" else bounds.min
            return _array(find.reduceat(_filled(numbers, valid, empty), self.starts), present, kind)
        if types.is_int64(kind):
            return _array(find.reduceat(_filled(_whole(array), valid, 0), self.starts), present, kind)
        if types.is_float64(kind):
            with np.errstate(invalid="ignore", over="ignore"):
                sums = find.reduceat(_filled(values(array, np.float64), valid, 0.0), self.starts)
            # As a sum that begins at zero, of which -0.0 leaves 0.0.
            return _array(sums + 0.0, present, kind)
        return self._decimal_sums(array, valid, present) if types.is_decimal128(kind) else None

    def _decimal_sums(
        self, array: Any, valid: NDArray[np.bool_] | None, present: NDArray[np.bool_] | None
    ) -> Any:
        """In 64 bits; None where that could be too few."""
        low, high = (_filled(each, valid, 0) for each in decimal_halves(array).T)
        if (high != low >> 63).any():
            return None
        longest = int(np.diff(self.starts, append=len(array)).max())
        most = max(int(low.max()), -int(low.min())) * longest
        if most > _MOST_LONG:
            return None
        sums = np.empty((len(self.starts), 2), np.int64)
        sums[:, 0] = np.add.reduceat(low, self.starts)
        sums[:, 1] = sums[:, 0] >> 63
        digits = array.type.precision if most < 10**array.type.precision else _MOST_DIGITS
        return _array(sums, present, pa.decimal128(digits, array.type.scale))


_KERNELS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def _ordered(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches by their first keys; none if the ranges of two of them would overlap, were each in order."""
    if len(batches) < 2:
        return batches
    columns = [batch.column(0) for batch in batches]
    if any(column.null_count for column in columns):
        return []
    ends = [(int(numbers[0]), int(numbers[-1])) for numbers in map(_whole, columns)]
    order = sorted(range(len(batches)), key=ends.__getitem__)
    if any(ends[one][1] > ends[two][0] for one, two in pairwise(order)):
        return []
    return [batches[number] for number in order]


def _is_whole(kind: pa.DataType) -> bool:
    return bool(types.is_signed_integer(kind) or types.is_date32(kind) or types.is_timestamp(kind))


def _whole(array: Any) -> NDArray[Any]:
    return values(array, np.dtype(f"i{array.type.bit_width // 8}"))


def _numbers(column: Any) -> NDArray[Any]:
    parts = [_whole(chunk) for chunk in column.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _filled(numbers: NDArray[Any], valid: NDArray[np.bool_] | None, empty: Any) -> NDArray[Any]:
    return numbers if valid is None else np.where(valid, numbers, numbers.dtype.type(empty))


def _array(numbers: NDArray[Any], present: NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    valid = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [valid, pa.py_buffer(np.ascontiguousarray(numbers))])


CHUNK_BYTES = 16 << 20
BATCH_ROWS = 64 * 1024
MERGED_ROWS = 4096
"""A merge of fewer rows takes no less time."""
FEW_GROUPS = 1024
"""They fit the cache, of however many rows they are."""
MERGED_ROWS_OF_FEW_GROUPS = 32 * 1024
MERGED_COPIES = 4
MERGED_ROW_BYTES = 160


def merge_bytes(data: Any) -> int:
    """The most that a merge of these rows takes, with the rows themselves."""
    return int(MERGED_COPIES * data.nbytes + MERGED_ROW_BYTES * data.num_rows)


@dataclass(frozen=True)
class Reduction:
    """Groups by ``keys``, with the ``states``, and with the ``carried`` columns of one of the group's rows.

    ``schema`` is that of reduced rows: keys, carried columns, states.
    """

    keys: tuple[str, ...]
    states: tuple[StateColumn, ...]
    schema: pa.Schema
    stage: str
    carried: tuple[str, ...] = ()

    def with_columns(self, names: Collection[str]) -> Reduction:
        """The same groups with these of the carried columns and of the states, by their names in ``schema``."""
        first = len(self.keys) + len(self.carried)
        states = zip(self.schema.names[first:], self.states, strict=True)
        return replace(
            self,
            states=tuple(state for name, state in states if name in names),
            schema=pa.schema([field for field in self.schema if field.name in {*self.keys, *names}]),
            carried=tuple(name for name in self.carried if name in names),
        )

    def lift(self, batch: Any) -> pa.RecordBatch:
        """Each row as a group of its own, in the reduced schema, in memory of its own: a column would keep alive all of
        the message in which its batch came.
        """
        return own(self._lift(batch), Lent())

    def lifted(self, batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        """As :meth:`lift`, and each batch is merged by itself, as long as that leaves at most half of it. Of few groups
        only large ones are: for these it takes less time than to copy the rows.
        """
        least_rows: float = MERGED_ROWS
        for batch in batches:
            if batch.num_rows < least_rows:
                yield self.lift(batch)
                continue
            rows = self._lift(batch)
            table = self.merge([rows])
            if table.num_rows == rows.num_rows:
                # Nothing was merged, and the table may be the rows as they came, in memory that is not its own.
                least_rows = inf
                yield own(rows, Lent())
                continue
            if 2 * table.nbytes > rows.nbytes:
                least_rows = inf
            else:
                least_rows = MERGED_ROWS if table.num_rows >= FEW_GROUPS else MERGED_ROWS_OF_FEW_GROUPS
            yield from table.to_batches()

    def _lift(self, batch: Any) -> pa.RecordBatch:
        columns = [
            *(canonical(batch.column(key)) for key in self.keys),
            *(batch.column(name) for name in self.carried),
            *(state.lift(batch) for state in self.states),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """One row for each group; the rows themselves where each is a group. Empties the list."""
        neighbours = self._of_neighbours(batches)
        if neighbours is not None:
            batches.clear()
            return neighbours
        # As in ``steps.batch_stages``: Arrow's engine warns of values as they lie in messages of the gRPC lane.
        table = pa.Table.from_batches(map(aligned, batches), self.schema)
        batches.clear()
        plain = not any(pa.types.is_nested(table.schema.field(key).type) for key in self.keys)
        if plain and not self.carried and all(state.kernel for state in self.states):
            names = [str(number) for number in range(len(self.keys))]
            grouped = self._aggregate(names, [table.column(key) for key in self.keys], table)
            return self._table([grouped.column(name) for name in names], grouped)
        codes = (
            group_codes([table.column(key) for key in self.keys])
            if self.keys
            else array_over(np.zeros(table.num_rows, np.int32))
        )
        numbers = values(codes, np.int32)
        first = first_rows(numbers)
        places = array_over(first)
        kept = [table.column(name).take(places) for name in (*self.keys, *self.carried)]
        grouped = self._aggregate(["0"], [codes], table) if self.states else None
        merged = {
            index: state.merged(_one(table.column(self._at(index))), numbers.astype(np.int64), len(first))
            for index, state in enumerate(self.states)
            if not state.kernel
        }
        return self._table(kept, grouped, merged)

    def _of_neighbours(self, batches: list[pa.RecordBatch]) -> pa.Table | None:
        """As :meth:`merge`, of rows that are in the order of their keys; None if they are not, or if Arrow's own
        aggregation is needed.
        """
        rows = RowsInOrder.of(batches, self.schema, len(self.keys))
        if rows is None:
            return None
        first = len(self.keys) + len(self.carried)
        if rows.are_merged and not any(map(_changes_zeros, self.states)):
            return rows.table
        columns = []
        for index, state in enumerate(self.states):
            if not state.kernel:
                return None
            column = rows.merged(state.kernel, state.ready(rows.table.column(self._at(index))))
            if column is None:
                return None
            columns.append(state.in_type(column, self.stage))
        return pa.table([*map(rows.firsts, range(first)), *columns], schema=self.schema)

    def reduced(self, batches: Iterator[Any], budget_bytes: int | None) -> Iterator[pa.Table]:
        """Merged rows, of distinct groups in each table; in one table if they fit ``budget_bytes``, or without a
        budget. ``batches`` are in the reduced schema. Without rows, no table.
        """
        held: list[pa.RecordBatch] = []
        fresh: list[pa.RecordBatch] = []
        held_bytes = fresh_bytes = given_bytes = 0
        held_weight = fresh_weight = 0
        passing = False
        for batch in batches:
            if not batch.num_rows:
                continue
            batch_bytes, batch_weight = batch.nbytes, merge_bytes(batch)
            full = budget_bytes is not None and held_weight + fresh_weight + batch_weight > budget_bytes
            if fresh and (full or fresh_bytes >= max(CHUNK_BYTES, held_bytes)):
                fresh[:0], held = held, []
                merged = self.merge(fresh)
                fresh_bytes = fresh_weight = 0
                held_bytes, held_weight = merged.nbytes, merge_bytes(merged)
                passing = budget_bytes is not None and held_bytes * 3 > given_bytes
                if passing or (budget_bytes is not None and 2 * held_weight > budget_bytes):
                    yield merged
                    held_bytes = held_weight = given_bytes = 0
                else:
                    held = merged.to_batches()
                del merged
            if passing:
                yield pa.Table.from_batches([batch])
                continue
            fresh.append(batch)
            fresh_bytes += batch_bytes
            given_bytes += batch_bytes
            fresh_weight += batch_weight
        if fresh:
            fresh[:0], held = held, []
            yield self.merge(fresh)
        elif held:
            yield pa.Table.from_batches(held)

    def _at(self, state: int) -> int:
        return len(self.keys) + len(self.carried) + state

    def _aggregate(self, names: list[str], groups: list[Any], table: pa.Table) -> pa.Table:
        """Arrow's aggregation of the states with kernels; a state's result is named after its number."""
        columns, labels, aggregations = list(groups), list(names), []
        options = compute().ScalarAggregateOptions(skip_nulls=True, min_count=1)
        for index, state in enumerate(self.states):
            if state.kernel:
                columns.append(state.ready(table.column(self._at(index))))
                labels.append(f"s{index}")
                aggregations.append((f"s{index}", state.kernel, options))
        return pa.table(columns, names=labels).group_by(names, use_threads=False).aggregate(aggregations)

    def _table(
        self, kept: list[Any], grouped: pa.Table | None, merged: dict[int, pa.Array] | None = None
    ) -> pa.Table:
        columns = list(kept)
        for index, state in enumerate(self.states):
            if state.kernel:
                assert grouped is not None
                columns.append(state.in_type(grouped.column(f"s{index}_{state.kernel}"), self.stage))
            else:
                columns.append((merged or {})[index])
        return pa.table(columns, schema=self.schema)


def _changes_zeros(state: StateColumn) -> bool:
    """Whether a merge of one row makes 0.0 of -0.0."""
    return state.kernel == "sum" and bool(pa.types.is_floating(state.type))


def _one(column: Any) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
