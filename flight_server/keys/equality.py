"""Whether rows are the same, pair by pair.

Guarantee: two rows are the same if each value is null in both, or equal in both; nested values are compared element by
element. Floats equal as in ``value_codes``, or with ``bits`` where all their bits are the same.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from .buffers import array_over, flags, values
from .normal import compute, elements, has_elements, is_plain, numbers, plain


def same(one: pa.Array, two: pa.Array, *, bits: bool = False) -> NDArray[np.bool_]:
    """For each row of two arrays of one type and length, whether both have the same value there."""
    one, two = plain(one), plain(two)
    if not (one.null_count or two.null_count):
        return _same_values(one, two, bits=bits)
    valid, other = flags(one.is_valid()), flags(two.is_valid())
    both = valid & other
    if both.any():
        at = array_over(np.flatnonzero(both))
        both[both] = _same_values(one.take(at), two.take(at), bits=bits)
    return both | ~(valid | other)


def _same_values(one: pa.Array, two: pa.Array, *, bits: bool) -> NDArray[np.bool_]:
    """The same for arrays that have no nulls."""
    kind = one.type
    if types.is_null(kind):
        return np.ones(len(one), np.bool_)
    if types.is_struct(kind):
        equal = np.ones(len(one), np.bool_)
        for index in range(kind.num_fields):
            equal &= same(one.field(index), two.field(index), bits=bits)
        return equal
    if has_elements(kind):
        return _same_lists(one, two, bits=bits)
    if bits and types.is_floating(kind):
        width = np.dtype(f"u{kind.byte_width}")
        return np.asarray(values(one, width) == values(two, width))
    if is_plain(kind):
        return np.asarray(numbers(one) == numbers(two))
    return flags(compute().equal(one, two))


def _same_lists(one: pa.Array, two: pa.Array, *, bits: bool) -> NDArray[np.bool_]:
    (inner, bounds), (others, other_bounds) = elements(one), elements(two)
    lengths = np.diff(bounds)
    equal: NDArray[np.bool_] = lengths == np.diff(other_bounds)
    lengths = np.where(equal, lengths, 0)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ours, theirs = (array_over(starts[rows] + within) for starts in (bounds, other_bounds))
    equal[rows[~same(inner.take(ours), others.take(theirs), bits=bits)]] = False
    return equal
