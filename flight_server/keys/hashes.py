"""Hashes: 64 bits for each row's key, which order and cut runs of updates, and index the files of lookups.

Guarantee: equal keys (see ``value_codes``) have equal hashes, in every process; those of :func:`key_hashes` for ever:
run files hold them. Different keys may share a hash, and are told apart by their values wherever that matters; only one
column of 64-bit numbers without nulls has a hash of its own for each value.

Of texts and binaries the first ``HEAD_WORDS`` and last ``TAIL_WORDS`` words of 8 bytes and the length count, for
:func:`row_hashes` those between them, too; of lists the elements, their places and the length. The mixing step is the
finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .buffers import flags, offsets, values
from .normal import elements, has_elements, is_plain, numbers, plain

HEAD_WORDS = 32
TAIL_WORDS = 4
_SLICE = 16_384
"""Values mixed at a time: they stay in a core's cache."""

Hashes = NDArray[np.uint64]

_Texts = Callable[["pa.Buffer | None", NDArray[np.int64], NDArray[np.int64]], Hashes]
"""Hashes texts, given by their bytes, starts and lengths."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(1)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def key_hashes(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """One for each of ``rows``; zeros without a column. Each type ``is_comparable``, or a dictionary of such a type."""
    return _of(columns, rows, _ends)


def row_hashes(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """As :func:`key_hashes`, and all of a long text counts; in one version of this package only."""
    return _of(columns, rows, _whole)


def unique(*parts: Hashes) -> Hashes:
    """Each hash of these once, sorted. Takes a hundredth of the time of ``np.unique`` if each part is sorted."""
    hashes = np.concatenate([np.zeros(0, np.uint64), *parts])
    hashes.sort(kind="stable")
    new = np.ones(len(hashes), np.bool_)
    new[1:] = hashes[1:] != hashes[:-1]
    return hashes[new]


def _of(columns: Sequence[pa.Array], rows: int, texts: _Texts) -> Hashes:
    hashes = np.zeros(rows, np.uint64)
    for column in columns:
        hashes = _mix((hashes + _GOLDEN) ^ _column(column, texts))
    return hashes


def _column(array: pa.Array, texts: _Texts) -> Hashes:
    if pa.types.is_dictionary(array.type):
        return _dictionary(array, texts)
    array = plain(array)
    rows, kind = len(array), array.type
    if rows == 0 or pa.types.is_null(kind):
        return np.full(rows, _NULL)
    if is_plain(kind):
        hashes = _mix(numbers(array).view(np.uint64))
    elif pa.types.is_struct(kind):
        hashes = _of(array.flatten(), rows, texts)
    elif has_elements(kind):
        inner, bounds = elements(array)
        hashes = _lists(_column(inner, texts), bounds)
    elif pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        starts = (np.arange(rows) + array.offset) * width
        hashes = texts(array.buffers()[1], starts, np.full(rows, width))
    else:
        bounds = offsets(array).astype(np.int64)
        hashes = texts(array.buffers()[2], bounds[:-1], np.diff(bounds))
    if array.null_count:
        hashes = np.where(flags(array.is_valid()), hashes, _NULL)
    return hashes


def _dictionary(array: pa.DictionaryArray, texts: _Texts) -> Hashes:
    """Each value is hashed once."""
    hashes = np.append(_column(array.dictionary, texts), _NULL)
    indices = values(array.indices, np.dtype(array.type.index_type.to_pandas_dtype())).astype(np.int64)
    if array.null_count:
        indices[~flags(array.is_valid())] = len(array.dictionary)
    return hashes[indices]


def _lists(hashes: Hashes, bounds: NDArray[np.int64]) -> Hashes:
    """Of each list's elements and their places the sum, and the length."""
    lengths = np.diff(bounds)
    places = np.arange(len(hashes)) - np.repeat(bounds[:-1], lengths)
    totals = np.zeros(len(hashes) + 1, np.uint64)
    np.cumsum(_mix(hashes ^ places.view(np.uint64)), out=totals[1:])
    return _mix((totals[bounds[1:]] - totals[bounds[:-1]]) ^ lengths.view(np.uint64))


def _ends(data: pa.Buffer | None, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    return _texts(_words(data, starts, lengths), starts - starts[0], lengths)


def _whole(data: pa.Buffer | None, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    words, starts = _words(data, starts, lengths), starts - starts[0]
    hashes = _texts(words, starts, lengths)
    head = 8 * HEAD_WORDS
    long = np.flatnonzero(lengths > head + 8 * TAIL_WORDS)
    counts = (lengths[long] - head) // 8  # the tail has the bytes after the last whole word
    ends = np.cumsum(counts)
    sums = np.zeros(len(long), np.uint64)
    for first in range(0, int(counts.sum()), _SLICE):
        each = np.arange(first, min(first + _SLICE, ends[-1]))
        rows = np.searchsorted(ends, each, "right")
        places = each - (ends - counts)[rows]
        word = words[starts[long][rows] + head + 8 * places] ^ (places.view(np.uint64) * _GOLDEN)
        begins = np.flatnonzero(np.diff(rows, prepend=-1))
        sums[rows[begins]] += np.add.reduceat(_mix(word), begins)
    hashes[long] = _mix((hashes[long] + _GOLDEN) ^ sums)
    return hashes


def _words(data: pa.Buffer | None, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    """The 8 bytes from each byte of these texts on, which are one after the other."""
    first = int(starts[0])
    size = int(starts[-1] + lengths[-1]) - first
    padded = np.zeros(size + 8, np.uint8)
    if data is not None:
        padded[:size] = np.frombuffer(data, np.uint8, size, first)
    return np.ndarray((size + 1,), "<u8", padded.data, strides=(1,))


def _texts(words: Hashes, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    hashes = _mix(lengths.astype(np.uint64) + _GOLDEN)
    longest = int(lengths.max(initial=0))
    for number in range(min(HEAD_WORDS, -(-longest // 8))):
        more = np.flatnonzero(lengths > 8 * number)
        left = np.minimum(lengths[more] - 8 * number, 8)
        word = words[starts[more] + 8 * number] & (~np.uint64(0) >> (64 - 8 * left).astype(np.uint64))
        hashes[more] = _mix((hashes[more] + _GOLDEN) ^ word)
    for number in range(TAIL_WORDS if longest > 8 * HEAD_WORDS else 0):
        more = np.flatnonzero(lengths > 8 * HEAD_WORDS)
        word = words[starts[more] + lengths[more] - 8 * (number + 1)]
        hashes[more] = _mix((hashes[more] + _GOLDEN) ^ word)
    return hashes


def _mix(hashes: Hashes) -> Hashes:
    mixed = np.empty(len(hashes), np.uint64)
    for start in range(0, len(hashes), _SLICE):
        part = mixed[start : start + _SLICE]
        np.right_shift(hashes[start : start + _SLICE], _S30, out=part)
        part ^= hashes[start : start + _SLICE]
        part *= _M1
        part ^= part >> _S27
        part *= _M2
        part ^= part >> _S31
    return mixed
