"""64-bit hashes of rows: two of Spark's 32-bit Murmur3 over the columns, from two seeds, side by side.

Guarantee: equal rows have equal hashes. Unequal rows may have equal hashes, too: a user compares the rows. The seed
of Spark's own placement is neither, because the rows of one partition have that hash in common, modulo a number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .hashing import SLICE_ROWS
from .key_columns import key_column

# The fractional bits of the square roots of 2 and 3, as in SHA-256 (FIPS 180-4).
_SEEDS = (0x6A09E667, 0xBB67AE85)


def row_hashes(columns: Sequence[pa.Array], rows: int) -> NDArray[np.uint64]:
    """The hash of each of ``rows`` rows of these columns, of equal lengths. TypeError: a type that is not hashed."""
    parts = [key_column(column, "key") for column in columns]
    hashes = np.empty(rows, np.uint64)
    for start in range(0, rows, SLICE_ROWS):
        window = slice(start, min(start + SLICE_ROWS, rows))
        halves = [np.full(window.stop - start, seed, np.uint32) for seed in _SEEDS]
        for part in parts:
            for half in halves:
                part.fold(window, half)
        np.left_shift(halves[0].astype(np.uint64), np.uint64(32), out=hashes[window])
        hashes[window] |= halves[1]
    return hashes
