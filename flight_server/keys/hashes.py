"""Hashes: 64 bits for each row's key, which order and cut runs of updates, and index the files of lookups.

Guarantee: equal keys (see ``value_codes``) have equal hashes, in every process, for ever: run files hold them.
Different keys may share a hash, and are told apart by their values wherever that matters.

Of texts and binaries the first ``HEAD_WORDS`` and last ``TAIL_WORDS`` words of 8 bytes and the length count; of lists
the elements, their places and the length. The mixing step is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .value_codes import elements, has_elements, is_plain, numbers, plain

HEAD_WORDS = 32
TAIL_WORDS = 4

Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(1)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def key_hashes(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """uint64, one for each of ``rows``; zeros without a column. Every column's type ``is_comparable``."""
    hashes = np.zeros(rows, np.uint64)
    for column in columns:
        hashes = _mixed((hashes + _GOLDEN) ^ _column(plain(column)))
    return hashes


def unique(*parts: Hashes) -> Hashes:
    """Each hash of these once, sorted. Takes a hundredth of the time of ``np.unique`` if each part is sorted."""
    hashes = np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]), kind="stable")
    new = np.ones(len(hashes), np.bool_)
    new[1:] = hashes[1:] != hashes[:-1]
    return hashes[new]


def _column(array: pa.Array) -> Hashes:
    rows, kind = len(array), array.type
    if rows == 0 or pa.types.is_null(kind):
        return np.full(rows, _NULL)
    if is_plain(kind):
        hashes = _mixed(numbers(array).view(np.uint64))
    elif pa.types.is_struct(kind):
        hashes = key_hashes(array.flatten(), rows)
    elif has_elements(kind):
        values, offsets = elements(array)
        hashes = _lists(_column(plain(values)), offsets)
    elif pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        starts = (np.arange(rows) + array.offset) * width
        hashes = _bytes(array.buffers()[1], starts, np.full(rows, width))
    else:
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        size = np.dtype(np.int64 if wide else np.int32)
        _, ends, data = array.buffers()
        offsets = np.frombuffer(ends, size, rows + 1, array.offset * size.itemsize).astype(np.int64)
        hashes = _bytes(data, offsets[:-1], np.diff(offsets))
    if array.null_count:
        hashes = np.where(array.is_valid().to_numpy(zero_copy_only=False), hashes, _NULL)
    return hashes


def _lists(values: Hashes, offsets: NDArray[np.int64]) -> Hashes:
    """Of each list's elements and their places the sum, and the length."""
    lengths = np.diff(offsets)
    places = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    totals = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(_mixed(values ^ places.view(np.uint64)), out=totals[1:])
    return _mixed((totals[offsets[1:]] - totals[offsets[:-1]]) ^ lengths.view(np.uint64))


def _bytes(data: pa.Buffer | None, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    first = int(starts[0])
    size, starts = int(starts[-1] + lengths[-1]) - first, starts - first
    padded = np.zeros(size + 8, np.uint8)
    if data is not None:
        padded[:size] = np.frombuffer(data, np.uint8, size, first)
    words = np.ndarray((size + 1,), "<u8", padded.data, strides=(1,))  # the word at each byte
    hashes = _mixed(lengths.astype(np.uint64) + _GOLDEN)
    longest = int(lengths.max(initial=0))
    for number in range(min(HEAD_WORDS, -(-longest // 8))):
        more = np.flatnonzero(lengths > 8 * number)
        left = np.minimum(lengths[more] - 8 * number, 8)
        word = words[starts[more] + 8 * number] & (~np.uint64(0) >> (64 - 8 * left).astype(np.uint64))
        hashes[more] = _mixed((hashes[more] + _GOLDEN) ^ word)
    for number in range(TAIL_WORDS if longest > 8 * HEAD_WORDS else 0):
        more = np.flatnonzero(lengths > 8 * HEAD_WORDS)
        word = words[starts[more] + lengths[more] - 8 * (number + 1)]
        hashes[more] = _mixed((hashes[more] + _GOLDEN) ^ word)
    return hashes


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> _S30)) * _M1
    values = (values ^ (values >> _S27)) * _M2
    return values ^ (values >> _S31)
