"""How many keys contents have, whose runs have many of the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from flight_server.kinds.changelog.contents import Bases, Contents, Range
from flight_server.kinds.changelog.runs import MAX_HASH, Layout, Updates
from tests.support import changelogs
from tests.support.run_rows import memory_run
from tests.support.server_process import ServerProcess

LAYOUT = Layout(pa.schema([("a", pa.int8())]), None)
KEYS = 40_000


def run_of(hashes: np.ndarray) -> Any:
    """A run in memory, which answers as the file of a base does."""
    each = np.sort(hashes)
    ones = np.ones(len(each), np.int64)
    rows = pa.RecordBatch.from_arrays([pa.array(ones.astype(np.int8))], schema=LAYOUT.schema)
    return memory_run(Updates(LAYOUT, rows, each, ones, ones))


@given(
    seed=st.integers(0, 1000),
    keys=st.sampled_from([0, 3, 300, 700, 30_000]),
    runs=st.integers(1, 5),
    cuts=st.lists(st.integers(1, MAX_HASH), max_size=5, unique=True),
)
def test_a_key_in_several_runs_and_in_a_base_counts_once(
    seed: int, keys: int, runs: int, cuts: list[int]
) -> None:
    draw = np.random.default_rng(seed)
    every = draw.integers(0, MAX_HASH, keys, np.uint64, endpoint=True)
    recent = [run_of(draw.choice(every, draw.integers(keys + 1))) for _ in range(runs)]
    # Ranges, of which each has a base of its own, or a part of one.
    base = run_of(draw.choice(every, draw.integers(keys + 1), replace=False))
    lows = [0, *sorted(cuts)]
    ranges = []
    inside = set[int]()
    for low, high in zip(lows, [*(low - 1 for low in lows[1:]), MAX_HASH], strict=True):
        hashes = base.updates.hashes
        mine = hashes[(hashes >= low) & (hashes <= high)]
        if draw.random() < 0.3:
            mine = mine[: len(mine) // 2]
            ranges.append(Range.of(low, high, 1, run_of(mine)))
        else:
            ranges.append(Range.of(low, high, 1, base))
        inside.update(mine.tolist())
    contents = Contents(Bases(LAYOUT, tuple(ranges)), tuple(recent))
    truth = len(inside.union(*(run.updates.hashes.tolist() for run in recent)))
    if truth <= 512:
        assert contents.keys == truth
    else:
        assert contents.keys == pytest.approx(truth, rel=0.2)


def test_the_number_of_keys_is_right_before_and_after_a_restart(tmp_path: Path) -> None:
    server = ServerProcess.start(memory_limit="256MiB", data_dir=tmp_path)
    with server, flight.connect(server.location) as client:
        # None of them is folded: all versions are kept.
        options = {"keep": {"rule": "latest", "key": ["k"], "order_by": ["t"]}, "delay_seconds": 3600}
        schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
        for name in ("small", "large"):
            changelogs.create(client, name, schema, **options)
        for time in range(4):
            changelogs.put(client, "small", pa.table({"k": range(40), "t": [time] * 40}, schema))
            changelogs.put(client, "large", pa.table({"k": range(KEYS), "t": [time] * KEYS}, schema))
        before = [changelogs.numbers(client, name)["keys"] for name in ("small", "large")]
        again = server.restart(memory_limit="256MiB", data_dir=tmp_path)
    with again, flight.connect(again.location) as client:
        after = [changelogs.numbers(client, name)["keys"] for name in ("small", "large")]
    assert before[0] == after[0] == 40
    assert before[1] == pytest.approx(KEYS, rel=0.1)
    assert after[1] == pytest.approx(KEYS, rel=0.1)


def test_rows_of_hashes_are_counted_once_in_files() -> None:
    rows = run_of(np.array([1, 1, 3, 5, 5, 5], np.uint64))
    asked: list[list[int]] = []

    class Base:
        rows, size_bytes, keys, retractions = 6, 100, 3, 0

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
