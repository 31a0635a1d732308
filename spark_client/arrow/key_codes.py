"""Keys of any groupable type as integers: rows have one code exactly where Spark's GROUP BY finds their keys equal.

Null equals null, NaN every NaN, and -0.0 equals 0.0. Structs are compared field by field, lists element by element
and in order, also inside each other; a null struct or list equals only a null one. Maps have no code, as in Spark.

How
    Arrow's dictionary encoding numbers the values of a plain column. A struct is its validity and its fields, which
    are numbered and combined. A list is the sequence of its elements' codes, whose bytes are numbered as one value.

Memory
    12 to 40 bytes for each row and each element of a list, and a copy of the key columns that are numbered as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import array_over, byte_lists, canonical, elements, has_elements, values

from .sizes import inner_types

_MOST_TEXT_BYTES = (1 << 31) - 1
"""32-bit offsets count so far."""


def group_codes(columns: Sequence[Any]) -> pa.Array:
    """Each row's int32 code: its group's number, from 0 by first appearance. ``columns``: arrays or chunked arrays of
    the same length, at least one.
    """
    rows = len(columns[0])
    chunked = (
        column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column]) for column in columns
    )
    parts = [part for column in chunked for part in _parts(column)]
    codes = _codes(parts[0]) if parts else np.zeros(rows, np.int32)
    for part in parts[1:]:
        encoded = _codes(part)
        # Both factors are at most the number of rows, so the product fits 63 bits.
        wide = codes.astype(np.int64) * (int(encoded.max(initial=0)) + 1) + encoded
        codes = values(array_over(wide).dictionary_encode().indices, np.int32)
    return array_over(codes)


def groupable(kind: pa.DataType) -> bool:
    """Whether keys of this type have codes."""
    return not any(map(types.is_map, inner_types(kind)))


def _codes(column: Any) -> NDArray[np.int32]:
    if types.is_null(column.type):
        return np.zeros(len(column), np.int32)
    if types.is_floating(column.type):
        column = pa.chunked_array([canonical(chunk) for chunk in column.chunks], column.type)
    elif has_elements(column.type):
        column = _as_bytes(column)
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    if wide is not None and column.nbytes > _MOST_TEXT_BYTES:
        # The dictionary of all chunks may have as much text.
        column = column.cast(wide)
    encoded = column.dictionary_encode(null_encoding="encode")
    chunks = [values(chunk.indices, np.int32) for chunk in encoded.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.zeros(0, np.int32), *chunks])


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each list as the bytes of its elements' codes."""
    lists_of_chunks = [elements(chunk) for chunk in column.chunks]
    codes = group_codes([pa.chunked_array([inner for inner, _ in lists_of_chunks], column.type.value_type)])
    numbers, lists = values(codes, np.int32), []
    for chunk, (inner, bounds) in zip(column.chunks, lists_of_chunks, strict=True):
        lists.append(byte_lists(chunk, bounds, numbers[: len(inner)]))
        numbers = numbers[len(inner) :]
    return pa.chunked_array(lists, pa.large_binary())


def _parts(column: Any) -> Iterator[Any]:
    """A struct's own validity and its fields, at any depth; anything else as it is."""
    if types.is_struct(column.type):
        yield column.is_null()
        for field in column.flatten():
            yield from _parts(field)
    else:
        yield column
