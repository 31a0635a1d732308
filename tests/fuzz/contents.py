"""The rows of an Arrow table as tuples that are equal exactly if type and value are: -0.0 is not 0.0, NaN is NaN.

Values are taken from Arrow's buffers, not made Python's own: dates after 9999 have no ``datetime.date``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from .pools import bits

Row = tuple[Hashable, ...]


def rows_of(table: pa.Table, loose: Collection[str] = (), approximate: Collection[str] = ()) -> list[Row]:
    """The rows, in their order.

    Args:
        loose: columns in which lists have no certain order and 0.0 may be -0.0.
        approximate: columns whose doubles are rounded to nine digits.
    """
    columns = []
    for name, column in zip(table.schema.names, table.columns, strict=True):
        whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        found = plain(whole)
        if name in approximate:
            found = [_rounded(value) for value in found]
        if name in loose:
            found = [_unordered(value) for value in found]
        columns.append(found)
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def plain(column: pa.Array) -> list[Hashable]:
    """The column's values, hashable."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return plain(column.storage)
    if types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if types.is_floating(kind):
        return [None if value is None else ("float", bits(value)) for value in column.to_pylist()]
    if types.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time64(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if types.is_struct(kind):
        parts = [plain(part) for part in column.flatten()]
        rows = zip(*parts, strict=True) if parts else [()] * len(column)
        return [
            row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)
        ]
    if types.is_map(kind):
        keys, items = plain(column.keys), plain(column.items)
        return _listed(column, list(zip(keys, items, strict=True)))
    if types.is_list(kind) or types.is_large_list(kind):
        return _listed(column, plain(column.values))
    return list(column.to_pylist())


def _listed(column: pa.Array, parts: Sequence[Hashable]) -> list[Hashable]:
    ends = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    return [tuple(parts[ends[row] : ends[row + 1]]) if valid[row] else None for row in range(len(column))]


def _number(value: Hashable) -> float | None:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "float":
        return float(memoryview(value[1].to_bytes(8, "little", signed=True)).cast("d")[0])
    return None


def _rounded(value: Hashable) -> Hashable:
    number = _number(value)
    if number is None or not math.isfinite(number):
        return value
    return ("float", bits(float(f"{number:.9g}") + 0.0))


def _unordered(value: Any) -> Hashable:
    number = _number(value)
    if number is not None:
        return ("float", bits(number + 0.0))
    if isinstance(value, tuple):
        return tuple(sorted((_unordered(part) for part in value), key=repr))
    return value  # type: ignore[no-any-return]
