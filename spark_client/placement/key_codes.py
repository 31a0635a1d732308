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

from spark_client.arrow import array_over, values

_MOST_TEXT_BYTES = (1 << 31) - 1
"""What 32-bit offsets can count."""


def group_codes(columns: Sequence[Any]) -> pa.Array:
    """Each row's int32 code: its group's number, from 0 by first appearance.

    Args:
        columns: arrays or chunked arrays of the same length, at least one.
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
    if types.is_map(kind):
        return False
    return all(groupable(kind.field(index).type) for index in range(kind.num_fields))


def _codes(column: Any) -> NDArray[np.int32]:
    if types.is_null(column.type):
        return np.zeros(len(column), np.int32)
    if types.is_floating(column.type):
        column = _normal(column)
    elif types.is_dictionary(column.type):
        # Its chunks may have different dictionaries.
        column = column.cast(column.type.value_type)
    elif _is_list(column.type):
        column = pa.chunked_array([_as_bytes(column)])
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    if wide is not None and column.nbytes > _MOST_TEXT_BYTES:
        # The dictionary of all chunks may have as much text.
        column = column.cast(wide)
    encoded = column.dictionary_encode(null_encoding="encode")
    found = [values(chunk.indices, np.int32) for chunk in encoded.chunks]
    return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, np.int32), *found])


def _normal(column: Any) -> Any:
    """Floats with one NaN and one zero: Arrow distinguishes NaNs by their bits, and -0.0 from 0.0."""
    import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which tasks without groups do without

    nan = pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, column.type)))


def _as_bytes(column: Any) -> pa.Array:
    """Each list as the bytes of its elements' codes."""
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    codes = values(group_codes([pc.list_flatten(column)]), np.int32)
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
    bounds = np.zeros(len(column) + 1, np.int64)
    for chunk, start in _placed(lengths):
        bounds[start + 1 : start + 1 + len(chunk)] = values(chunk, np.int64)
    np.cumsum(bounds, out=bounds)
    validity = None
    if column.null_count:
        validity = pa.concat_arrays(column.is_valid().chunks).buffers()[1]
    data = [validity, pa.py_buffer(bounds * codes.itemsize), pa.py_buffer(np.ascontiguousarray(codes))]
    return pa.Array.from_buffers(pa.large_binary(), len(column), data)


def _placed(column: Any) -> Iterator[tuple[pa.Array, int]]:
    """The chunks, and the row at which each begins."""
    start = 0
    for chunk in column.chunks:
        yield chunk, start
        start += len(chunk)


def _parts(column: Any) -> Iterator[Any]:
    """A struct's own validity and its fields, at any depth; anything else as it is."""
    if types.is_struct(column.type):
        yield column.is_null()
        for field in column.flatten():
            yield from _parts(field)
    else:
        yield column


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
