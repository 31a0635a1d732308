"""Merges rows that lie in the order of their keys, as those of a file that was written in this order: the rows of a
group are neighbours, and no hash table is needed. It takes a third of the time where groups have four rows; to see
that rows are in another order takes a hundredth.

Guarantee: :meth:`RowsInOrder.of` finds an order only where each group's rows are neighbours: all keys are whole
numbers, days or instants without nulls, the first one never falls from a row to the next, and the others change only
with it. Batches may come in another order than that of their keys, as from several tasks, if their ranges do not
overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import flags
from spark_client.arrow import array_over, values, view

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
        array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        valid = flags(array.is_valid()) if array.null_count else None
        there = None if valid is None else np.logical_or.reduceat(valid, self.starts)
        if kernel != "sum":
            if not _is_whole(kind):
                return None
            numbers = _whole(array)
            bounds = np.iinfo(numbers.dtype)
            empty = bounds.max if kernel == "min" else bounds.min
            return _array(find.reduceat(_filled(numbers, valid, empty), self.starts), there, kind)
        if types.is_int64(kind):
            return _array(find.reduceat(_filled(_whole(array), valid, 0), self.starts), there, kind)
        if types.is_float64(kind):
            with np.errstate(invalid="ignore", over="ignore"):
                sums = find.reduceat(_filled(values(array, np.float64), valid, 0.0), self.starts)
            # As a sum that begins at zero, of which -0.0 leaves 0.0.
            return _array(sums + 0.0, there, kind)
        return self._decimal_sums(array, valid, there) if types.is_decimal128(kind) else None

    def _decimal_sums(
        self, array: Any, valid: NDArray[np.bool_] | None, there: NDArray[np.bool_] | None
    ) -> Any:
        """In 64 bits; None where that could be too few."""
        words = view(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
        low, high = (_filled(each, valid, 0) for each in (words[::2], words[1::2]))
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
        return _array(sums, there, pa.decimal128(digits, array.type.scale))


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


def _array(numbers: NDArray[Any], there: NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    valid = None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [valid, pa.py_buffer(np.ascontiguousarray(numbers))])
