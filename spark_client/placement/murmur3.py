"""Spark's Murmur3 over whole columns: each function mixes one value into each row's running hash, in place.

The hash is Spark's MurmurHash3_x86_32, which differs from Austin Appleby's original in one point: each of the one to
three bytes after a byte string's last whole word is sign-extended to 32 bits and mixed as a word of its own.

All functions update `hashes`, a contiguous uint32 array with each row's running hash. Values are bit patterns.

Byte strings of uneven lengths
    Rows are ordered by length, longest first, so that one step mixes the next word of all that have one. A step costs
    about as much as two hundred words in plain Python, for any number of rows; so fewer than `FEW_ROWS` are finished
    one by one. Extra memory is a few machine words per row plus `TAIL_WORDS`, for strings of any length.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Hashes: TypeAlias = NDArray[np.uint32]

SEED = 42
"""The seed of Spark's `hash()` and hash partitioning."""

FEW_ROWS = 32

TAIL_WORDS = 65_536
"""Words of one long string that are prepared at a time."""

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_M5 = np.uint32(5)
_N = np.uint32(0xE6546B64)
_F1 = np.uint32(0x85EBCA6B)
_F2 = np.uint32(0xC2B2AE35)
_R13, _R15, _R16, _R17, _R19 = (np.uint32(bits) for bits in (13, 15, 16, 17, 19))


def hash_ints(values: NDArray[np.int32], hashes: Hashes) -> None:
    """Mix one 32-bit value into each hash."""
    scratch = np.empty_like(hashes)
    _mix(hashes, _scramble(values.astype(np.uint32), scratch), scratch)
    _finish(hashes, np.uint32(4), scratch)


def hash_longs(values: NDArray[np.int64], hashes: Hashes) -> None:
    """Mix one 64-bit value into each hash, its low word first."""
    scratch = np.empty_like(hashes)
    _mix(hashes, _scramble(values.astype(np.uint32), scratch), scratch)
    _mix(hashes, _scramble((values >> 32).astype(np.uint32), scratch), scratch)
    _finish(hashes, np.uint32(8), scratch)


def hash_bytes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], hashes: Hashes
) -> None:
    """Mix the byte string `data[start:start + length]` of each row into its hash."""
    _mix_words(data, starts, lengths >> 2, hashes)
    trailing = lengths & 3
    tails = starts + lengths - trailing
    for index in range(3):
        rows = np.flatnonzero(trailing > index)
        if not rows.size:
            break
        word = data[tails[rows] + index].view(np.int8).astype(np.int32).view(np.uint32)
        mixed = hashes[rows]
        scratch = np.empty_like(mixed)
        _mix(mixed, _scramble(word, scratch), scratch)
        hashes[rows] = mixed
    _finish(hashes, lengths.astype(np.uint32), np.empty_like(hashes))


def _mix_words(
    data: NDArray[np.uint8], starts: NDArray[np.int64], words: NDArray[np.int64], hashes: Hashes
) -> None:
    longest = int(words.max(initial=0))
    if longest == 0:
        return
    # Every byte of the data starts one (unaligned) word of this view.
    stream: NDArray[np.uint32] = np.ndarray((data.size - 3,), np.dtype("<u4"), data, strides=(1,))
    # numpy sorts 16-bit integers by radix, several times faster than wider ones.
    keys = (longest - words).astype(np.uint16 if longest < 65_536 else np.int64)
    order = np.argsort(keys, kind="stable")
    mixed = hashes[order]
    places = starts[order]
    # For each word count that occurs, from the smallest: how many rows have as many or more.
    ascending = words[order[::-1]]
    below = np.flatnonzero(np.diff(ascending, prepend=-1))
    levels = ascending[below]
    scratch = np.empty_like(mixed)
    done = 0
    for level, rows in zip(levels.tolist(), (words.size - below).tolist(), strict=True):
        if rows < FEW_ROWS:
            break
        for _ in range(done, level):
            word = stream[places[:rows]].astype(np.uint32, copy=False)
            _mix(mixed[:rows], _scramble(word, scratch[:rows]), scratch[:rows])
            places[:rows] += 4
        done = level
    for row in range(min(FEW_ROWS, words.size)):
        left = int(words[order[row]]) - done
        if left > 0:
            mixed[row] = _mix_one(data, int(places[row]), left, int(mixed[row]))
    hashes[order] = mixed


def _mix_one(data: NDArray[np.uint8], place: int, words: int, mixed: int) -> int:
    while words > 0:
        count = min(words, TAIL_WORDS)
        block = np.frombuffer(data[place : place + 4 * count].tobytes(), "<u4").astype(np.uint32)
        for word in _scramble(block, np.empty_like(block)).tolist():
            mixed ^= word
            mixed = ((mixed << 13 | mixed >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
        place += 4 * count
        words -= count
    return mixed


def _scramble(word: Hashes, scratch: Hashes) -> Hashes:
    word *= _C1
    np.left_shift(word, _R15, out=scratch)
    word >>= _R17
    word |= scratch
    word *= _C2
    return word


def _mix(hashes: Hashes, word: Hashes, scratch: Hashes) -> None:
    hashes ^= word
    np.left_shift(hashes, _R13, out=scratch)
    hashes >>= _R19
    hashes |= scratch
    hashes *= _M5
    hashes += _N


def _finish(hashes: Hashes, length_bytes: np.uint32 | Hashes, scratch: Hashes) -> None:
    hashes ^= length_bytes
    np.right_shift(hashes, _R16, out=scratch)
    hashes ^= scratch
    hashes *= _F1
    np.right_shift(hashes, _R13, out=scratch)
    hashes ^= scratch
    hashes *= _F2
    np.right_shift(hashes, _R16, out=scratch)
    hashes ^= scratch
