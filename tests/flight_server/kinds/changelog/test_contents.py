"""What contents count of their runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.kinds.changelog.contents import Bases, Range
from flight_server.kinds.changelog.runs import MAX_HASH, Layout, Run, Updates
from tests.support.run_rows import memory_run

LAYOUT = Layout(pa.schema([("a", pa.int8())]), None)


def run_of(hashes: list[int]) -> Any:
    """A run in memory, which answers as the file of a base does."""
    ones = np.ones(len(hashes), np.int64)
    rows = pa.RecordBatch.from_arrays([pa.array(ones.astype(np.int8))], schema=LAYOUT.schema)
    return memory_run(Updates(LAYOUT, rows, np.array(hashes, np.uint64), ones, ones))


def test_rows_of_hashes_are_counted_once_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    bases = Bases(LAYOUT, (Range(base=run_of([1, 1, 3, 5, 5, 5])),))
    asked: list[list[int]] = []
    hits = Run.hits

    def watched(run: Run, hashes: np.ndarray) -> Any:
        asked.append(hashes.tolist())
        return hits(run, hashes)

    monkeypatch.setattr(Run, "hits", watched)
    counts = [bases.counts_of(np.array(each, np.uint64)).tolist() for each in ([3, 5], [1, 2, 3, 5], [1, 5])]
    assert counts == [[1, 3], [2, 0, 1, 3], [2, 3]]
    assert asked == [[3, 5], [1, 2]]


def test_the_bases_of_ranges_are_one_run() -> None:
    parts = [
        Range(0, 4, 0, run_of([0, 1, 1, 3])),
        Range(5, 6),
        Range(7, MAX_HASH, 0, run_of([7, 7, MAX_HASH])),
    ]
    bases = Bases(LAYOUT, tuple(parts))
    assert ([each.rows for each in parts], bases.rows) == ([4, 0, 3], 7)
    assert bases.between(0, MAX_HASH).hashes.tolist() == [0, 1, 1, 3, 7, 7, MAX_HASH]
    assert bases.between(1, 3).hashes.tolist() == [1, 1, 3]
    assert [bases.below(hash_)[0] for hash_ in (0, 1, 2, 7, MAX_HASH)] == [0, 1, 3, 4, 6]
