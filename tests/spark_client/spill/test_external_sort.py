"""Sorting within a budget: Python's sorted with a model of Spark's order, in memory and through files."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.arrow import SortKey
from spark_client.spill import TaskMemory, sorted_batches
from spark_client.spill.gathered import OUT_BYTES, OUT_ROWS
from tests.support.arrow_peak import arrow_peak
from tests.support.order_model import ordered

TINY, ROOMY = 1, 1 << 40
COLUMNS = ["f", "s", "i", "b"]


def table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    f, s, i, b = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "f": pa.array(f, pa.float64()),
            "s": pa.array(s, pa.string()),
            "i": pa.array(i, pa.int32()),
            "b": pa.array(b, pa.bool_()),
            "row": pa.array(range(len(rows)), pa.int64()),
        }
    )


def sort(data: pa.Table, keys: Sequence[SortKey], budget_bytes: int, rows: int = 7) -> list[pa.RecordBatch]:
    memory = TaskMemory(budget_bytes)
    found = list(sorted_batches(iter(data.to_batches(max_chunksize=rows)), keys, memory))
    assert all(0 < batch.num_rows <= OUT_ROWS for batch in found)
    assert bool(memory.spilled_bytes) == (budget_bytes == TINY and data.num_rows > 0)
    return found


def numbers(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [row for batch in batches for row in batch.column("row").to_pylist()]


floats = st.none() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -1.5, 5e-324])
texts = st.none() | st.sampled_from(["", "a", "ab", "é", "z", "\0", "😀", "\uffff"])
rows = st.tuples(floats, texts, st.none() | st.integers(-2, 2), st.none() | st.booleans())
keys_of = st.lists(
    st.builds(SortKey, st.sampled_from(COLUMNS), st.booleans(), st.none() | st.booleans()),
    min_size=1,
    max_size=3,
)


@given(st.lists(rows, max_size=60), keys_of, st.sampled_from([TINY, ROOMY]))
def test_rows_are_in_sparks_order_and_equal_rows_in_their_own(
    given_rows: list[tuple[Any, ...]], keys: list[SortKey], budget_bytes: int
) -> None:
    data = table(given_rows)
    assert numbers(sort(data, keys, budget_bytes)) == ordered(data, keys)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "arranged",
    [
        *(pytest.param(each, marks=pytest.mark.long) for each in ("sorted", "reversed", "one value")),
        "two alternating",
        "random",
    ],
)
def test_many_runs_are_merged_whatever_their_arrangement(arranged: str, *, descending: bool) -> None:
    count = 6_000
    numbers_of: dict[str, Any] = {
        "sorted": np.arange(count),
        "reversed": np.arange(count)[::-1],
        "one value": np.zeros(count, np.int64),
        "two alternating": np.arange(count) % 2,
        "random": np.random.default_rng(5).integers(0, 5000, count),
    }
    data = pa.table({"k": pa.array(numbers_of[arranged]), "row": pa.array(np.arange(count))})
    found = sort(data, [SortKey("k", descending)], TINY, rows=100)
    assert numbers(found) == ordered(data, [SortKey("k", descending)])


def test_rows_of_very_different_sizes_come_in_batches_of_a_few_mebibytes() -> None:
    sizes = [3_000_000, 10, 10, 5_000_000, 10] * 4
    data = pa.table(
        {
            "k": pa.array([(number * 7) % 20 for number in range(20)]),
            "text": pa.array(["x" * size for size in sizes]),
            "row": pa.array(range(20)),
        }
    )
    for budget_bytes in (TINY, ROOMY):
        found = sort(data, [SortKey("k")], budget_bytes, rows=3)
        assert numbers(found) == ordered(data, [SortKey("k")])
        assert all(batch.num_rows == 1 or batch.nbytes <= OUT_BYTES + 1000 for batch in found)


@pytest.mark.parametrize(
    ("budget_bytes", "key"),
    [
        (8 << 20, "v"),
        *(
            pytest.param(*of, marks=pytest.mark.long)
            for of in ((8 << 20, "k"), (32 << 20, "k"), (32 << 20, "v"))
        ),
    ],
)
def test_memory_follows_the_budget_and_not_the_rows(budget_bytes: int, key: str) -> None:
    rng = np.random.default_rng(3)

    def source() -> Iterator[pa.RecordBatch]:
        for _ in range(80):
            numbers = pa.array(rng.integers(0, 1 << 60, 8192))
            wide = pa.Array.from_buffers(pa.binary(80), 8192, [None, pa.py_buffer(rng.bytes(80 * 8192))])
            yield pa.RecordBatch.from_arrays([numbers, wide.cast(pa.binary())], names=["k", "v"])

    previous, count = None, 0
    memory = TaskMemory(budget_bytes)
    with arrow_peak() as pool:
        for batch in sorted_batches(source(), [SortKey(key)], memory):
            found = batch.column(key).to_pylist()
            assert previous is None or previous <= found[0]
            previous, count = found[-1], count + len(found)
    assert count == 80 * 8192
    assert memory.spilled_bytes > 50 << 20
    assert pool.max_memory() <= budget_bytes


def test_no_rows_are_no_batches() -> None:
    data = table([])
    assert sort(data, [SortKey("f")], TINY) == []
    empty = data.to_batches() or [pa.RecordBatch.from_pylist([], data.schema)]
    assert list(sorted_batches(iter(empty), [SortKey("f")], TaskMemory(TINY))) == []


def test_files_are_closed_without_the_collector_when_the_rows_end_or_are_abandoned(tmp_path: Path) -> None:
    data = pa.table({"n": np.random.default_rng(1).integers(0, 1 << 30, 400_000)})
    gc.disable()
    try:
        for stop in (3, 1 << 30):
            memory = TaskMemory(1 << 20, str(tmp_path))
            found = sorted_batches(iter(data.to_batches(max_chunksize=10_000)), [SortKey("n")], memory)
            assert list(islice(found, stop))
            assert memory.spilled_bytes
            del found
            links = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
            assert not any(str(tmp_path) in str(each.readlink()) for each in links)
    finally:
        gc.enable()
