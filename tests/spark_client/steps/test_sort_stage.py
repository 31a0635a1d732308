"""The first rows of a task: those of a stable sort, within the task's memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_client.arrow import Declared, SortKey
from spark_client.spill import TaskMemory
from spark_client.steps import Pass, TopStage

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("row", pa.int64())])


def table(count: int) -> pa.Table:
    keys = np.random.default_rng(1).integers(0, 40, count)
    texts = [None if key % 9 == 0 else f"text {key % 5}" for key in keys.tolist()]
    return pa.table(
        [pa.array(keys), pa.array(texts, pa.string()), pa.array(range(count), pa.int64())], schema=SCHEMA
    )


def top(data: pa.Table, rows: int, keys: tuple[SortKey, ...], budget_bytes: int = 1 << 30) -> list[int]:
    stage = TopStage(rows, keys, Declared("top", SCHEMA))
    batches = iter(data.to_batches(max_chunksize=997))
    found = list(stage.run(batches, Pass(memory=TaskMemory(budget_bytes))))
    assert all(batch.num_rows for batch in found)
    return [row for batch in found for row in batch.column("row").to_pylist()]


@pytest.mark.parametrize("rows", [1, 5000, 40_000])
@pytest.mark.parametrize("count", [0, 900, 30_000])
def test_the_first_rows_are_those_of_a_stable_sort(rows: int, count: int) -> None:
    data = table(count)
    keys = (SortKey("s", descending=True), SortKey("k"))
    wanted = data.sort_by([("row", "ascending")]).to_pylist()
    wanted.sort(key=lambda row: row["k"])
    wanted.sort(key=lambda row: (row["s"] is None, [-ord(each) for each in row["s"] or ""]))
    assert top(data, rows, keys) == [row["row"] for row in wanted[:rows]]


def test_more_than_fits_the_memory_goes_through() -> None:
    data = table(30_000)
    found = top(data, 20_000, (SortKey("k"),), budget_bytes=1 << 18)
    assert len(found) == len(set(found)) > 20_000
    first = sorted(range(30_000), key=lambda row: (data.column("k")[row].as_py(), row))[:20_000]
    assert set(first) <= set(found)
