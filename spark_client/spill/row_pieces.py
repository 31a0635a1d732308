"""Cuts rows of any size into batches of a few mebibytes, or of one row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import batch_row_bits, cuts

OUT_ROWS = 64 * 1024
OUT_BYTES = 4 << 20
_LEAST_BYTES = 64 << 10


def piece_bytes(budget_bytes: int) -> int:
    """The size of a piece within this budget: several copies of one are made at once."""
    return min(max(budget_bytes // 16, _LEAST_BYTES), OUT_BYTES)


def row_weights(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """The bytes of each row, rounded up."""
    bits = np.broadcast_to(np.asarray(batch_row_bits(batch), np.int64), batch.num_rows)
    return (bits + 7) // 8


def pieces(weights: NDArray[np.int64], most_bytes: int = OUT_BYTES) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive rows, each of at most so many bytes and of ``OUT_ROWS`` rows, or one row."""
    # A row counts at least so much that OUT_ROWS rows of it are OUT_BYTES.
    counted = np.maximum(weights, OUT_BYTES // OUT_ROWS)
    return cuts(np.concatenate([[0], np.cumsum(counted)]), 0, len(weights), most_bytes)


def cut(batch: pa.RecordBatch, most_bytes: int = OUT_BYTES) -> Iterator[pa.RecordBatch]:
    """The batch in such pieces, not copied."""
    if batch.num_rows <= OUT_ROWS and batch.nbytes <= most_bytes:
        if batch.num_rows:
            yield batch
        return
    for start, stop in pieces(row_weights(batch), most_bytes):
        yield batch.slice(start, stop - start)
