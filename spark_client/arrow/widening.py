"""Casts a column to a wider type, as Spark's implicit casts do: for keys of two types, unions, and statistics.

Decimals as doubles
    Arrow's cast of a decimal multiplies by a rounded power of ten, so it is not always the nearest double, which
    Spark's is. Where the unscaled number and the power of ten are doubles themselves, one division gives the nearest
    (IEEE 754 rounds a quotient once); elsewhere the decimal's text is parsed, which rounds once, too.

Dictionaries of texts
    Before Arrow decodes them it asks for as many bytes as the rows would take if each had a text of the dictionary's
    mean length. Where 64 Ki rows have a text of one byte, but one of them has one of 60 kB, that is 2 GB for 124 kB: it
    is not used, but counts as address space, which ``spark.executor.pyspark.memory`` bounds. So :func:`decoded` decodes
    such rows some at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import array_over, is_bytes, values, view

ASKED_BYTES = 32 << 20


def decoded(column: Any) -> Any:
    """A dictionary-encoded array, or chunked array, as one of its values' type."""
    kind = column.type.value_type
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array(list(map(decoded, column.chunks)), kind)
    dictionary = column.dictionary
    most_rows = len(column)
    if len(dictionary) and is_bytes(kind):
        most_rows = max(1, ASKED_BYTES * len(dictionary) // max(1, dictionary.nbytes))
    if len(column) <= most_rows:
        return column.dictionary_decode()
    parts = range(0, len(column), most_rows)
    return pa.concat_arrays([column.slice(first, most_rows).dictionary_decode() for first in parts])


_EXACT_INTEGER = 1 << 53
_EXACT_POWER = 22
"""The greatest power of ten that is a double."""


def widened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as ``kind``, both of which Spark has, also in the parts of lists, maps and structs.

    A number as a double is the nearest one, as in Spark; any other cast that would change a value raises
    ``ArrowInvalid``.
    """
    if column.type == kind:
        return column
    if has_more_digits(kind, column.type):
        return with_more_digits(column, kind)
    if types.is_float64(kind) and types.is_decimal(column.type):
        return _nearest_doubles(column)
    if types.is_nested(kind) and kind.id == column.type.id:
        return _parts_widened(column, kind)
    return column.cast(kind, safe=not types.is_floating(kind))


def has_more_digits(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether a decimal of the kind holds all values of the given one, in the same bits."""
    return bool(
        types.is_decimal128(kind)
        and types.is_decimal128(other)
        and kind.scale == other.scale
        and kind.precision >= other.precision
    )


def with_more_digits(column: Any, kind: pa.DataType) -> Any:
    """The array or chunked array as a decimal of more digits, without a copy: Arrow's cast looks at each value."""
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([with_more_digits(chunk, kind) for chunk in column.chunks], kind)
    return pa.Array.from_buffers(kind, len(column), column.buffers(), column.null_count, column.offset)


def _parts_widened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A nested column of the same nesting. Its children keep their offsets, so that its own buffers serve again."""
    if types.is_struct(kind):
        fields = list(kind)
        # The child's own array starts before the struct's first row where the struct is a slice.
        whole = column if not column.offset else pa.concat_arrays([column])
        children = [widened(whole.field(index), field.type) for index, field in enumerate(fields)]
        return pa.Array.from_buffers(kind, len(whole), whole.buffers()[:1], children=children)
    if types.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [widened(column.keys, kind.key_type), widened(column.items, kind.item_type)],
            fields=[kind.key_field, kind.item_field],
        )
        return pa.Array.from_buffers(
            kind, len(column), column.buffers()[:2], offset=column.offset, children=[entries]
        )
    elements = widened(column.values, kind.value_type)
    return pa.Array.from_buffers(
        kind, len(column), column.buffers()[:2], offset=column.offset, children=[elements]
    )


def decimal_halves(column: pa.Array) -> NDArray[np.int64]:
    """The low and high 64 bits of each value of a ``decimal128`` column, side by side."""
    halves = view(column.buffers()[1], np.int64).reshape(-1, 2)
    return halves[column.offset : column.offset + len(column)]


def _nearest_doubles(column: pa.Array) -> pa.Array:
    """The doubles nearest to a decimal column's values; nulls stay."""
    scale = column.type.scale
    if scale <= _EXACT_POWER:
        low, high = decimal_halves(column).T
        exact = (high == low >> 63) & (np.abs(low) <= _EXACT_INTEGER)
        if column.null_count:
            exact |= ~values(column.is_valid().cast(pa.uint8()), np.uint8).view(np.bool_)
        if exact.all():
            return _with_nulls_of(low / 10.0**scale, column)
    return column.cast(pa.string()).cast(pa.float64())


def _with_nulls_of(numbers: NDArray[np.float64], column: pa.Array) -> pa.Array:
    array = array_over(numbers)
    if not column.null_count:
        return array
    validity = pa.concat_arrays([column]).buffers()[0] if column.offset else column.buffers()[0]
    return pa.Array.from_buffers(pa.float64(), len(column), [validity, array.buffers()[1]])
