"""The normal form of Arrow values: equal values have equal bits, in each encoding and layout of their arrays.

Guarantee: extension types are their storage, dictionaries their values; there is one NaN, of Java's bits, and one zero.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .buffers import offsets, validity, values

_SIGN = np.uint64(1 << 63)
_TOP = np.int64(0x7FFFFFFFFFFFFFFF)
_NAN = np.int64(0x7FFFFFFFFFFFFFF0)
_FLOATS = {
    2: (1 << 15, 0x1F << 10, 0x3F << 9),
    4: (1 << 31, 0xFF << 23, 0x1FF << 22),
    8: (1 << 63, 0x7FF << 52, 0xFFF << 51),
}
"""Of floats of so many bytes: the sign, infinity and the NaN."""


_PLAIN = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.decimal32(1), pa.decimal64(1)),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("s"), pa.duration("s")),
    )
)
"""The ids of types of up to 64 bits."""
_BYTES = frozenset(kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))
_INT8 = pa.int8()
_LISTS = frozenset(
    kind.id for kind in (pa.list_(_INT8), pa.large_list(_INT8), pa.list_(_INT8, 1), pa.map_(_INT8, _INT8))
)
_INT64 = pa.int64().id


@cache
def compute() -> Any:
    """``pyarrow.compute``, imported when it is first needed: it costs a server that does not need it 0.1 s."""
    return import_module("pyarrow.compute")


def is_plain(kind: pa.DataType) -> bool:
    """Whether :func:`numbers` takes this type: numbers of up to 64 bits, booleans, dates, times, durations."""
    return kind.id in _PLAIN


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are text or bytes that lie one behind the other, at offsets."""
    return kind.id in _BYTES


def is_comparable(kind: pa.DataType) -> bool:
    """Whether :func:`codes` takes this type: all but intervals, unions, views, dictionaries and run-end encodings."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return is_comparable(kind.storage_type)
    if types.is_struct(kind):
        return all(is_comparable(field.type) for field in kind.fields)
    if types.is_map(kind):
        return is_comparable(kind.key_type) and is_comparable(kind.item_type)
    if has_elements(kind):
        return is_comparable(kind.value_type)
    return bool(
        is_plain(kind)
        or types.is_null(kind)
        or is_bytes(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_decimal(kind)
    )


def has_elements(kind: pa.DataType) -> bool:
    """Whether :func:`elements` takes this type: lists, large and of a fixed size, and maps."""
    return kind.id in _LISTS


def is_nested(kind: pa.DataType) -> bool:
    """Whether its values have others in them: lists, maps and structs, also as the storage of an extension type."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_nested(kind.storage_type)
    return bool(pa.types.is_nested(kind))


def plain(array: pa.Array) -> pa.Array:
    """The array without its extension type and its dictionary, and not of views."""
    if array.type.id in _PLAIN:
        return array
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return plain(array.dictionary_decode()) if pa.types.is_dictionary(array.type) else array


def float_bits(bits: NDArray[Any]) -> NDArray[Any]:
    """The bits of floats, as unsigned integers of their width, with one NaN and one zero; a copy."""
    kind = bits.dtype.type
    sign, infinity, nan = (kind(each) for each in _FLOATS[bits.itemsize])
    # Compared as integers: arithmetic on a signalling NaN would warn.
    normal = np.where((bits & ~sign) > infinity, nan, bits)
    normal[normal == sign] = 0
    return normal


def canonical(array: pa.Array) -> pa.Array:
    """The values with one form for equal floats, also inside structs and lists: 0.0 for -0.0, and one NaN."""
    kind = array.type
    if not _has_floats(kind):
        return array
    if pa.types.is_floating(kind):
        bits = float_bits(values(array, np.dtype(f"u{kind.byte_width}")))
        return pa.Array.from_buffers(kind, len(array), [validity(array), pa.py_buffer(bits)])
    if pa.types.is_struct(kind):
        parts = [canonical(array.field(index)) for index in range(kind.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        # The offsets count from the start of the child, also for a slice.
        valid, bounds = array.buffers()[:2]
        return pa.Array.from_buffers(
            kind, len(array), [valid, bounds], array.null_count, array.offset, [canonical(array.values)]
        )
    return array


def numbers(array: pa.Array) -> NDArray[np.int64]:
    """int64, one for each row, arbitrary where it is null; of one type they order and equal like the values. May be a
    view of the array, which is not to be changed.
    """
    kind = array.type
    if kind.id == _INT64:
        return values(array, np.int64)
    if pa.types.is_boolean(kind):
        return values(array.cast(pa.int8()), np.int8).astype(np.int64)
    if pa.types.is_floating(kind):
        wide = array.cast(pa.float64()) if kind.bit_width != 64 else array
        bits = float_bits(values(wide, np.uint64)).view(np.int64)
        ordered: NDArray[np.int64] = np.where(bits < 0, bits ^ _TOP, bits)
        ordered[bits == _FLOATS[8][2]] = _NAN
        return ordered
    if pa.types.is_uint64(kind):
        return (values(array, np.uint64) ^ _SIGN).view(np.int64)
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    return values(array, np.dtype(f"{sign}{kind.bit_width // 8}")).astype(np.int64, copy=False)


def elements(array: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """The elements of all lists, and where each list's begin, and the last one's end. A null may have elements."""
    rows, kind = len(array), array.type
    if rows == 0:
        return array.values.slice(0, 0), np.zeros(1, np.int64)
    if pa.types.is_fixed_size_list(kind):
        bounds = (np.arange(rows + 1) + array.offset) * kind.list_size
    else:
        bounds = offsets(array).astype(np.int64)
    return array.values.slice(bounds[0], bounds[-1] - bounds[0]), bounds - bounds[0]


def byte_lists(array: pa.Array, bounds: NDArray[np.int64], codes: NDArray[Any]) -> pa.Array:
    """A large binary for each list of ``array``, null where the list is: the bytes of its elements' codes.

    Args:
        bounds: where each list's elements begin, from 0 on, and where the last one's end.
        codes: an integer, or a row of bytes, for each element.
    """
    data = np.ascontiguousarray(codes)
    width = data[:1].nbytes or data.itemsize
    buffers = [validity(array), pa.py_buffer(bounds * width), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(array), buffers)


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return any(_has_floats(kind.field(index).type) for index in range(kind.num_fields))
