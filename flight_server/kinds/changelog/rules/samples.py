"""Sample: rows of many puts on which a rule of the user's own is tested, whole keys of them.

Guarantee: of each key in the sample it has the rows from the first one on, or from the last retraction, so a query that
needs several rows of a key to go wrong does so on the sample, also when each row comes in a put of its own. It has at
most ``MAX_ROWS`` rows and ``SAMPLE_BYTES``. When there are more, it keeps the keys with the smallest hashes, which is a
choice by chance, and takes no row of other keys from then on.

It is to be tested when its rows have doubled, or those that share their key with another: so all tests together cost
about twice the last one. It is complete when ``MAX_ROWS / 2`` rows that share their keys were tested. A row that is
asserted several times counts up to ``MAX_COPIES``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MAX_ROWS = 5_000
MAX_COPIES = 3
SAMPLE_BYTES = 256 << 10
_LAST = np.uint64(np.iinfo(np.uint64).max)


@dataclass(frozen=True)
class Sample:
    """Never changes.

    Args:
        hashes: uint64, of each row's key.
        below: keys with greater hashes are not in it.
        tested: how many rows it had at its last test, and how many of them shared their keys.
    """

    rows: pa.RecordBatch
    hashes: NDArray[np.uint64]
    below: np.uint64 = _LAST
    tested: tuple[int, int] = (0, 0)

    @classmethod
    def empty(cls, schema: pa.Schema) -> Sample:
        return cls(pa.RecordBatch.from_pylist([], schema), np.zeros(0, np.uint64))

    def plus(self, rows: pa.RecordBatch, hashes: NDArray[np.uint64], counts: NDArray[np.int64]) -> Sample:
        """With these rows, too, which are there so often; a copy."""
        wanted = np.flatnonzero(hashes <= self.below)
        if not len(wanted) or self.complete:
            return self
        copies = np.repeat(wanted, np.minimum(counts[wanted], MAX_COPIES))
        had = self.rows.num_rows
        hashes = np.concatenate([self.hashes, hashes[copies]])
        row_bytes = (self.rows.nbytes + rows.nbytes) // (had + rows.num_rows)
        most = max(2, min(MAX_ROWS, SAMPLE_BYTES // max(1, row_bytes)))
        below, left = self.below, np.arange(len(hashes))
        if len(hashes) > most:
            order = np.argsort(hashes, kind="stable")
            goes = int(np.searchsorted(hashes[order], hashes[order[most // 2]]))
            left = order[: goes or most // 2]  # else one key has them all
            below = hashes[left[-1]]
            left.sort()
        columns = rows.take(pa.array(copies[left[left >= had] - had])).columns
        new = pa.RecordBatch.from_arrays(columns, schema=self.rows.schema)
        old = self.rows.take(pa.array(left[left < had]))
        return Sample(pa.concat_batches([old, new]), hashes[left], below, self.tested)

    def without(self, hashes: NDArray[np.uint64]) -> Sample:
        left = ~np.isin(self.hashes, hashes)
        if left.all():
            return self
        rows = self.rows.take(pa.array(np.flatnonzero(left)))
        return Sample(rows, self.hashes[left], self.below, self.tested)

    @property
    def sharing(self) -> int:
        _, counts = np.unique(self.hashes, return_counts=True)
        return int(counts[counts > 1].sum())

    @property
    def due(self) -> bool:
        rows, sharing = self.tested
        return len(self.hashes) > max(0, 2 * rows - 1) or self.sharing > max(0, 2 * sharing - 1)

    @property
    def complete(self) -> bool:
        """Whether it need not grow any more."""
        return self.tested[1] >= MAX_ROWS // 2

    def was_tested(self) -> Sample:
        """The same after a test that it passed."""
        rows, sharing = self.tested
        now = max(rows, len(self.hashes)), max(sharing, self.sharing)
        return Sample(self.rows, self.hashes, self.below, now)
