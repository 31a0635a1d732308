"""What contents count of their runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.kinds.changelog.contents import Bases, Range
from flight_server.kinds.changelog.runs import Layout, Updates
from tests.support.run_rows import memory_run

LAYOUT = Layout(pa.schema([("a", pa.int8())]), None)


def run_of(hashes: np.ndarray) -> Any:
    """A run in memory, which answers as the file of a base does."""
    each = np.sort(hashes)
    ones = np.ones(len(each), np.int64)
    rows = pa.RecordBatch.from_arrays([pa.array(ones.astype(np.int8))], schema=LAYOUT.schema)
    return memory_run(Updates(LAYOUT, rows, each, ones, ones))


def test_rows_of_hashes_are_counted_once_in_files() -> None:
    rows = run_of(np.array([1, 1, 3, 5, 5, 5], np.uint64))
    asked: list[list[int]] = []

    class Base:
        rows, size_bytes, retractions = 6, 100, 0

        def counts_of(self, hashes: np.ndarray) -> Any:
            asked.append(hashes.tolist())
            return rows.counts_of(hashes)

    base: Any = Base()
    bases = Bases(LAYOUT, (Range(base=base, rows=6),))

    first = bases.counts_of(np.array([3, 5], np.uint64))
    second = bases.counts_of(np.array([1, 2, 3, 5], np.uint64))
    third = bases.counts_of(np.array([1, 5], np.uint64))

    assert (first.tolist(), second.tolist(), third.tolist()) == ([1, 3], [2, 0, 1, 3], [2, 3])
    assert asked == [[3, 5], [1, 2]]
