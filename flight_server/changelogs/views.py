"""View: a changelog's runs at one moment, and what can be read of them.

A view never changes, so readers and merges work on it in threads while commits go on. All methods block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.rules import Rule
from flight_server.runs import MAX_HASH, Layout, Run, Updates

from .folding import deltas, snapshot

SLICE_ROWS = 64 << 10
MIN_SLICE_ROWS = 1 << 10
SLICE_BYTES = 8 << 20

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class View:
    """See the module's text. ``since`` and ``upper`` are the versions that can be asked for."""

    layout: Layout
    rule: Rule
    runs: tuple[Run, ...]
    since: int
    upper: int

    def slice_rows(self, slice_bytes: int = SLICE_BYTES) -> int:
        """How many rows are read together: at most ``SLICE_ROWS``, fewer if they are large."""
        rows = sum(run.rows for run in self.runs)
        row_bytes = max(1, sum(run.size_bytes for run in self.runs) // max(1, rows))
        return max(MIN_SLICE_ROWS, min(SLICE_ROWS, slice_bytes // row_bytes))

    def snapshot(self, version: int, slice_bytes: int = SLICE_BYTES) -> Iterator[pa.RecordBatch]:
        """The collection at a version, in parts; parts may be empty."""
        runs = [run for run in self.runs if run.first_version <= version]
        step = self.slice_rows(slice_bytes)
        for low, high in hash_ranges(runs, step):
            updates = Updates.joined(self.layout, [run.between(low, high) for run in runs])
            yield from snapshot(updates, version, self.rule, step)

    def deltas(self, after: int, upto: int, slice_bytes: int = SLICE_BYTES) -> Iterator[pa.RecordBatch]:
        """The changes of the collection between two versions, consolidated, with ``_diff``; parts may be empty."""
        for updates in self.changed(after, upto, slice_bytes):
            kept = deltas(updates, after, upto, self.rule)
            yield with_diffs(self.layout, kept.rows, kept.counts)

    def changed(self, after: int, upto: int, slice_bytes: int = SLICE_BYTES) -> Iterator[Updates]:
        """All updates, up to ``upto``, of the keys with updates in between, in parts of whole keys."""
        runs = [run for run in self.runs if run.first_version <= upto]
        changed = np.unique(
            np.concatenate(
                [
                    np.zeros(0, np.uint64),
                    *(run.changed(after, upto) for run in runs if run.last_version > after),
                ]
            )
        )
        step = self.slice_rows(slice_bytes)
        for start in range(0, len(changed), step):
            hashes = changed[start : start + step]
            yield Updates.joined(self.layout, [run.of_hashes(hashes) for run in runs])


def with_diffs(layout: Layout, rows: pa.RecordBatch, counts: NDArray[np.int64]) -> pa.RecordBatch:
    """A batch of deltas."""
    return pa.RecordBatch.from_arrays([*rows.columns, pa.array(counts)], schema=layout.delta_schema)


def hash_ranges(runs: Sequence[Run], wanted_rows: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges of hashes, both ends included, that cover all hashes from ``start`` on, with about ``wanted_rows`` of the
    runs' rows each: at most twice as many, unless one hash has more.
    """
    total = sum(run.rows for run in runs)
    low = start
    below = _rows_below(runs, low, total)
    while low <= MAX_HASH:
        left = total - below
        if left <= wanted_rows:
            yield low, MAX_HASH
            return
        # Hashes are spread evenly, so the first guess is nearly right. If it is not, the range's end is bisected.
        high = low + (MAX_HASH - low) * wanted_rows // left
        least, most = low, MAX_HASH
        while (until := _rows_below(runs, high + 1, total)) == below or until - below > 2 * wanted_rows:
            if until == below:
                least = high + 1
            elif least < high:
                most = high
            else:
                break
            high = (least + most) // 2
        yield low, high
        low, below = high + 1, until


def _rows_below(runs: Sequence[Run], hash_: int, total: int) -> int:
    return total if hash_ > MAX_HASH else sum(run.rows_below(hash_) for run in runs)
