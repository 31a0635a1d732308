"""The groups of a table: rows that agree in all keys, with Spark's idea of agreeing.

Guarantee: every row is in exactly one group; groups come in the order of their first rows, and the rows of a
group in the order they have in the table.

Agreeing
    Null agrees with null, NaN with every NaN, and -0.0 with 0.0, as in Spark's GROUP BY. Structs agree
    field by field, and a null struct only with a null struct. Lists and maps are not grouped by: the plan
    refuses them (see :func:`check_groupable`).

How
    Each key becomes an integer code (Arrow's dictionary encoding), the codes of several keys become one, and
    one stable counting sort of the codes puts each group in one place. Rows are gathered window by window, so
    that beside the table itself only one window (``WINDOW_BYTES``, or the largest group) is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flight_server.errors import InvalidRequest

WINDOW_BYTES = 128 * 1024 * 1024
"""Rows gathered at a time, in bytes; a larger group is gathered whole."""


def check_groupable(schema: pa.Schema, keys: Sequence[str], stage: str) -> None:
    """Nothing, if every key can be grouped by.

    Raises:
        InvalidRequest: a key with a list or a map in it.
    """
    for key in keys:
        if _is_nested(schema.field(key).type):
            raise InvalidRequest(
                f"{stage}: cannot group by {key!r} of type {schema.field(key).type}; "
                "group by a column made from it, for example its length, an element or its text",
                stage=stage,
                column=key,
            )


def groups(
    table: pa.Table, keys: Sequence[str], window_bytes: int = WINDOW_BYTES
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Each group's keys as a tuple of Arrow scalars, and its rows as a table of one chunk per column."""
    if not table.num_rows:
        return
    codes = group_codes([table.column(key) for key in keys])
    order = pc.array_sort_indices(codes)
    ends = np.cumsum(np.bincount(codes.to_numpy()))
    window_rows = max(1, window_bytes * table.num_rows // max(1, table.nbytes))
    first = 0
    while first < len(ends):
        start = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + window_rows, side="right")))
        window = table.take(order.slice(start, int(ends[last - 1]) - start)).combine_chunks()
        offset = 0
        for end in ends[first:last].tolist():
            rows = window.slice(offset, end - start - offset)
            offset = end - start
            yield tuple(rows.column(key)[0] for key in keys), rows
        first = last


def group_codes(columns: Sequence[Any]) -> pa.Array:
    """Dense int32 codes, 0 for the first row's group, then counting up by first appearance."""
    codes = np.zeros(len(columns[0]), np.int64)
    for part in (part for column in columns for part in _parts(column)):
        encoded = _codes(part)
        # Both factors are at most the number of rows, so that the product fits 63 bits.
        codes = codes * (int(encoded.max()) + 1) + encoded
        codes = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return pa.array(codes, pa.int32())


def _codes(column: Any) -> Any:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    if pa.types.is_floating(column.type):
        # Arrow tells NaNs apart by their bits, and -0.0 from 0.0.
        nan = pa.scalar(float("nan"), column.type)
        column = pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, column.type)))
    encoded = column.dictionary_encode(null_encoding="encode")
    chunks = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
    return np.concatenate([chunk.indices.to_numpy() for chunk in chunks]).astype(np.int64)


def _parts(column: Any) -> Iterator[Any]:
    """A struct's own validity and its fields, at any depth; anything else as it is."""
    if pa.types.is_struct(column.type):
        yield column.is_null()
        for field in column.flatten():
            yield from _parts(field)
    else:
        yield column


def _is_nested(type_: Any) -> bool:
    if pa.types.is_struct(type_):
        return any(_is_nested(field.type) for field in type_)
    return bool(pa.types.is_nested(type_))
