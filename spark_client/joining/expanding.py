"""The sizes of a join's result batches: a product of many matches comes in pieces, and few matches come together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Positions = NDArray[np.int64]

PIECE_ROWS = 64 * 1024
PIECE_BYTES = 4 * 1024 * 1024
SMALL_ROWS = 8 * 1024
SMALL_BYTES = 256 * 1024


def expanded(shown: Positions, piece_rows: int = PIECE_ROWS) -> Iterator[tuple[Positions, Positions]]:
    """Each row ``shown`` times: for each piece of the result the rows' positions, and which time each is, from 0."""
    ends = np.cumsum(shown)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, piece_rows):
        stop = min(start + piece_rows, total)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left")) + 1
        begins = ends[first:last] - shown[first:last]
        lengths = np.minimum(ends[first:last], stop) - np.maximum(begins, start)
        rows = np.repeat(np.arange(first, last), lengths)
        yield rows, np.arange(start, stop) - np.repeat(begins, lengths)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, in order; neighbouring batches below ``SMALL_ROWS`` and ``SMALL_BYTES`` are joined until they are not:
    where few rows match, a function would be given thousands of batches of a few rows.
    """
    small: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        batch_bytes = batch.nbytes
        is_small = batch.num_rows < SMALL_ROWS and batch_bytes < SMALL_BYTES
        if is_small:
            small.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch_bytes
        if small and not (is_small and rows < SMALL_ROWS and size_bytes < SMALL_BYTES):
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small, rows, size_bytes = [], 0, 0
        if not is_small:
            yield batch
    if small:
        yield small[0] if len(small) == 1 else pa.concat_batches(small)
