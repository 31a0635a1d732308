"""Codes: any Arrow array as integers that order and equal like its values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .buffers import flags, validity, values
from .normal import byte_lists, compute, elements, has_elements, is_plain, numbers, plain

Codes = NDArray[np.int64]

NULL = np.iinfo(np.int64).min
_SIGN = np.uint64(1 << 63)
_TOP = np.int64(0x7FFFFFFFFFFFFFFF)


def codes(array: pa.Array) -> Codes:
    """int64, one for each row, not to be changed.

    Of two rows of one array, the codes compare as the values do. A null is below every value and equal to another null;
    a NaN is above every number and equal to another NaN; -0.0 equals 0.0. Codes of two arrays do not compare: many are
    dense ranks within their array. Lists order by their elements, then by length; structs by their fields; maps as
    lists of entries.
    """
    array = plain(array)
    kind = array.type
    if len(array) == 0 or pa.types.is_null(kind):
        return np.full(len(array), NULL)
    if is_plain(kind):
        return _plain_codes(array)
    if pa.types.is_struct(kind):
        return _ranks(_pack([codes(field) for field in array.flatten()], array))
    if has_elements(kind):
        inner, bounds = elements(array)
        return _ranks(byte_lists(array, bounds, _big_endian(codes(inner))))
    return _ranks(array)


def falling(rising: Codes) -> Codes:
    """Codes that order the other way, but for nulls, which stay below every value."""
    null = rising == NULL
    if null.any() and np.any(rising == _TOP):
        rising = np.unique(rising, return_inverse=True)[1].astype(np.int64)
    turned = ~rising
    turned[null] = NULL
    return turned


def _ranks(array: pa.Array) -> Codes:
    # Where nulls are ranked is of no account, and how that is said depends on pyarrow's version.
    options = compute().RankOptions("ascending", tiebreaker="dense")
    ranks: Codes = values(compute().rank(array, options=options), np.uint64).astype(np.int64)
    if array.null_count:
        ranks[flags(array.is_null())] = NULL
    return ranks


def _plain_codes(array: pa.Array) -> Codes:
    numbered = numbers(array)
    null = flags(array.is_null()) if array.null_count else None
    least = numbered == NULL
    if (least if null is None else least & ~null).any():  # the least integer
        numbered = np.unique(numbered, return_inverse=True)[1]
    return numbered if null is None else np.where(null, NULL, numbered)


def _pack(columns: list[Codes], array: pa.Array) -> pa.Array:
    """A fixed-size binary for each row that orders as its codes do."""
    rows = len(array)
    stacked = np.zeros((rows, max(1, len(columns))), ">u8")
    for number, column in enumerate(columns):
        stacked[:, number] = _big_endian(column)
    return pa.Array.from_buffers(
        pa.binary(stacked.shape[1] * 8), rows, [validity(array), pa.py_buffer(stacked)]
    )


def _big_endian(column: Codes) -> NDArray[np.uint64]:
    """Bytes that order as the codes do."""
    return (column.view(np.uint64) ^ _SIGN).astype(">u8")
