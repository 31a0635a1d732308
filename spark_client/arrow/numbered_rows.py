"""The rows of many batches, numbered through, to be picked in any order without first being joined.

Joining them would double the memory; so rows are picked batch by batch, and only the picked ones are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .row_picking import Picker
from .sizes import batch_row_bits

SMALL_BYTES = 1024 * 1024
"""Smaller neighbouring batches are joined, up to this size."""


class NumberedRows:
    """The rows of ``batches``, of one schema, without the batches that have none."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.batches = [batch for batch in batches if batch.num_rows]
        counts = [batch.num_rows for batch in self.batches]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.count = int(self._starts[-1])
        self._pickers = [Picker(batch) for batch in self.batches]

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each row, rounded up, without dictionaries."""
        found = np.empty(self.count, np.int64)
        for batch, start in zip(self.batches, self._starts.tolist(), strict=False):
            found[start : start + batch.num_rows] = batch_row_bits(batch)
        found += 7
        found >>= 3
        return found

    def bytes_before(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of all rows before each place of ``order``, and of all rows."""
        before = np.zeros(len(order) + 1, np.int64)
        np.take(self.sizes(), order, out=before[1:], mode="clip")  # "raise" makes a copy
        np.cumsum(before[1:], out=before[1:])
        return before

    def take(self, numbers: NDArray[np.int64]) -> pa.RecordBatch:
        """A copy of the rows of these numbers, at least one, in that order. Raises ArrowInvalid: a column's rows are
        too much text for its offsets, or its dictionaries have too many values together.
        """
        if len(self.batches) == 1:
            return self._pickers[0].take(numbers)
        batch_of = np.searchsorted(self._starts, numbers, side="right") - 1
        by_batch = np.argsort(batch_of, kind="stable")
        bounds = np.searchsorted(batch_of[by_batch], np.arange(len(self.batches) + 1))
        pieces = [
            self._pickers[index].take(numbers[by_batch[start:end]] - self._starts[index])
            for index, (start, end) in enumerate(pairwise(bounds.tolist()))
            if start < end
        ]
        if len(pieces) == 1:
            return pieces[0]
        places = np.empty(len(numbers), np.int64)
        places[by_batch] = np.arange(len(numbers))
        return Picker(pa.concat_batches(pieces)).take(places)


def cuts(before: NDArray[np.int64], start: int, end: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Bounds of pieces of the rows from ``start`` to before ``end``, each of at most this size or of one row.
    ``before`` has the bytes before each row, and after the last one.
    """
    while start < end:
        fitting = int(np.searchsorted(before, before[start] + size_bytes, side="right")) - 1
        cut = min(end, max(fitting, start + 1))
        yield start, cut
        start = cut


def together(
    batches: list[pa.RecordBatch], size_bytes: int = SMALL_BYTES, *, copied: bool = False
) -> list[pa.RecordBatch]:
    """The batches, neighbours joined up to this size, without empty ones. Empties the given list, so that joined
    batches are released on the way. With ``copied`` none shares memory with the given ones, but for dictionaries.
    """
    found: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    small_bytes = 0
    batches.reverse()
    while batches:
        batch = batches.pop()
        if small and small_bytes + batch.nbytes > size_bytes:
            found.extend(joined(small, copied=copied))
            small, small_bytes = [], 0
        if batch.num_rows:
            small.append(batch)
            small_bytes += batch.nbytes
    if small:
        found.extend(joined(small, copied=copied))
    return found


def joined(batches: list[pa.RecordBatch], *, copied: bool = False) -> list[pa.RecordBatch]:
    """The rows as one batch, or the batches where their dictionaries do not fit one."""
    if len(batches) == 1 and not copied:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # A common dictionary would have too many values, or dictionaries are inside nested columns.
        return [pa.concat_batches([batch]) for batch in batches] if copied else batches
