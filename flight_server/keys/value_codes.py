"""Codes: any Arrow array as integers that order and equal like its values.

Guarantee: of two rows of one array, the codes compare as the values do. A null is below every value and equal to
another null; a NaN is above every number and equal to another NaN; -0.0 equals 0.0. Codes of two arrays do not compare:
many are dense ranks within their array.

Lists order by their elements, then by length; structs by their fields; maps as lists of entries.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Codes = NDArray[np.int64]

NULL = np.iinfo(np.int64).min
_SIGN = np.uint64(1 << 63)
_TOP = np.int64(0x7FFFFFFFFFFFFFFF)
_NAN = np.int64(0x7FFFFFFFFFFFFFF0)


@cache
def compute() -> Any:
    """``pyarrow.compute``, imported when it is first needed: it costs a server that does not need it 0.1 s."""
    return import_module("pyarrow.compute")


def is_plain(kind: pa.DataType) -> bool:
    """Whether :func:`numbers` takes this type: numbers of up to 64 bits, booleans, dates, times, durations."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal32(kind)
        or types.is_decimal64(kind)
        or (types.is_temporal(kind) and not types.is_interval(kind))
    )


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
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_decimal(kind)
    )


def has_elements(kind: pa.DataType) -> bool:
    """Whether :func:`elements` takes this type: lists, large and of a fixed size, and maps."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_map(kind)
    )


def is_nested(kind: pa.DataType) -> bool:
    """Whether its values have others in them: lists, maps and structs, also as the storage of an extension type."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_nested(kind.storage_type)
    return bool(pa.types.is_nested(kind))


def plain(array: pa.Array) -> pa.Array:
    """The array without its extension type."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def codes(array: pa.Array) -> Codes:
    """int64, one for each row, not to be changed; see the module's text."""
    array = plain(array)
    kind = array.type
    if len(array) == 0 or pa.types.is_null(kind):
        return np.full(len(array), NULL)
    if is_plain(kind):
        return _plain_codes(array)
    if pa.types.is_struct(kind):
        return _ranks(_packed([codes(field) for field in array.flatten()], array))
    if has_elements(kind):
        return _ranks(_list_bytes(array))
    return _ranks(array)


def falling(found: Codes) -> Codes:
    """Codes that order the other way, but for nulls, which stay below every value."""
    null = found == NULL
    if null.any() and np.any(found == _TOP):
        found = np.unique(found, return_inverse=True)[1].astype(np.int64)
    turned = ~found
    turned[null] = NULL
    return turned


def numbers(array: pa.Array) -> Codes:
    """int64, one for each row, arbitrary where it is null; of one type they order and equal like the values. May be a
    view of the array, which is not to be changed.
    """
    kind = array.type
    if pa.types.is_boolean(kind):
        found: Codes = array.cast(pa.int8()).fill_null(0).to_numpy().astype(np.int64)
    elif pa.types.is_floating(kind):
        values = _values(array.cast(pa.float64()) if kind.bit_width != 64 else array, np.float64)
        bits = np.where(values == 0, 0.0, values).view(np.int64)  # -0.0 becomes 0.0
        found = np.where(bits < 0, bits ^ _TOP, bits)
        found[np.isnan(values)] = _NAN
    elif pa.types.is_uint64(kind):
        found = (_values(array, np.uint64) ^ _SIGN).view(np.int64)
    else:
        sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
        found = _values(array, np.dtype(f"{sign}{kind.bit_width // 8}")).astype(np.int64, copy=False)
    return found


def elements(array: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """The elements of all lists, and where each list's begin, with the end of the last one's behind them. A null may
    have elements.
    """
    rows, kind = len(array), array.type
    if rows == 0:
        return array.values.slice(0, 0), np.zeros(1, np.int64)
    if pa.types.is_fixed_size_list(kind):
        offsets = (np.arange(rows + 1) + array.offset) * kind.list_size
    else:
        size = np.dtype(np.int64 if pa.types.is_large_list(kind) else np.int32)
        start_bytes = array.offset * size.itemsize
        offsets = np.frombuffer(array.buffers()[1], size, rows + 1, start_bytes).astype(np.int64)
    return array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0]


def _ranks(array: pa.Array) -> Codes:
    # Where nulls are ranked is of no account, and how that is said depends on pyarrow's version.
    options = compute().RankOptions("ascending", tiebreaker="dense")
    ranks: Codes = compute().rank(array, options=options).to_numpy().astype(np.int64)
    if array.null_count:
        ranks[array.is_null().to_numpy(zero_copy_only=False)] = NULL
    return ranks


def _plain_codes(array: pa.Array) -> Codes:
    found = numbers(array)
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    least = found == NULL
    if (least if null is None else least & ~null).any():  # the least integer
        found = np.unique(found, return_inverse=True)[1]
    return found if null is None else np.where(null, NULL, found)


def _values(array: pa.Array, kind: Any) -> NDArray[Any]:
    """A view of the array's fixed-width values, arbitrary where they are null."""
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(len(array), kind)
    size_bytes = np.dtype(kind).itemsize
    return np.frombuffer(data, kind, count=len(array), offset=array.offset * size_bytes)


def _packed(columns: list[Codes], array: pa.Array) -> pa.Array:
    """A fixed-size binary for each row that orders as its codes do."""
    rows = len(array)
    stacked = np.empty((rows, max(1, len(columns))), ">u8")
    stacked[:] = 0
    for number, column in enumerate(columns):
        stacked[:, number] = column.view(np.uint64) ^ _SIGN
    packed = pa.Array.from_buffers(
        pa.binary(stacked.shape[1] * 8), rows, [None, pa.py_buffer(stacked.tobytes())]
    )
    return compute().if_else(array.is_valid(), packed, None) if array.null_count else packed


def _list_bytes(array: pa.Array) -> pa.Array:
    """A large binary for each list that orders as its elements' codes do."""
    values, offsets = elements(array)
    encoded = (codes(values).view(np.uint64) ^ _SIGN).astype(">u8")
    buffers = [None, pa.py_buffer((offsets * 8).tobytes()), pa.py_buffer(encoded.tobytes())]
    lists = pa.Array.from_buffers(pa.large_binary(), len(array), buffers)
    return compute().if_else(array.is_valid(), lists, None) if array.null_count else lists
