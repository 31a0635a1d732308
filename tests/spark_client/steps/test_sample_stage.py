"""Samples of keys: fair, bounded, repeatable; and the boundaries that they give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from spark_client.arrow import Declared, SortCodes, SortKey, ranges_of
from spark_client.pipeline.ranges import _boundaries, _held
from spark_client.steps import Pass, SampleStage

SCHEMA = pa.schema([("k", pa.int64()), ("weight", pa.float64())])


def sample(
    batches: Iterator[pa.RecordBatch], partition: int, seed: int = 1, rows: int = 400
) -> list[pa.RecordBatch]:
    stage = SampleStage(Declared("sample", SCHEMA), ("k",), rows, seed)
    return list(stage.run(batches, Pass(partition=partition)))


def batches(keys: np.ndarray, rows: int = 1000) -> Iterator[pa.RecordBatch]:
    table = pa.table({"other": pa.array(keys), "k": pa.array(keys)})
    yield from table.to_batches(max_chunksize=rows)


def test_a_sample_is_bounded_and_stands_for_all_rows() -> None:
    for rows in (1, 399, 400, 401, 50_000):
        (found,) = sample(batches(np.arange(rows)), 0)
        assert found.num_rows == min(rows, 400)
        assert found.schema == SCHEMA
        assert sum(found.column("weight").to_pylist()) == pytest.approx(rows)
        assert len(set(found.column("k").to_pylist())) == found.num_rows
    assert sample(batches(np.arange(0)), 0) == []


def test_each_row_has_the_same_chance_wherever_it_is() -> None:
    counts = np.zeros(10)
    for seed in range(50):
        (found,) = sample(batches(np.arange(10_000)), 3, seed, rows=100)
        counts += np.bincount(np.array(found.column("k").to_pylist()) // 1000, minlength=10)
    # 500 in each tenth, with a standard deviation of 21.
    assert (abs(counts - 500) < 100).all()


def test_the_same_seed_gives_the_same_sample_and_another_partition_another_one() -> None:
    first, again, other = (sample(batches(np.arange(9000)), partition) for partition in (1, 1, 2))
    assert first == again
    assert first != other


def test_large_keys_are_sampled_within_a_few_mebibytes() -> None:
    schema = pa.schema([("k", pa.string()), ("weight", pa.float64())])
    stage = SampleStage(Declared("sample", schema), ("k",), 1000, 1)
    wide = pa.RecordBatch.from_pydict({"k": [str(row) * 200_000 for row in range(10)]})
    (found,) = stage.run(iter([wide] * 40), Pass(partition=0))
    assert 4 <= found.num_rows < 30
    assert sum(found.column("weight").to_pylist()) == pytest.approx(400)


@pytest.mark.parametrize("partitions", [2, 7, 50])
def test_ranges_have_about_equally_many_rows_also_where_tasks_do_not(partitions: int) -> None:
    rng = np.random.default_rng(2)
    tasks = [rng.normal(task, 1 + task, size) for task, size in enumerate((100, 3000, 50_000, 20))]
    found = []
    for partition, keys in enumerate(tasks):
        found += sample(batches((keys * 1e6).astype(np.int64)), partition, rows=1000)
    key = SortKey("k", descending=True)
    boundaries = _boundaries(found, (key,), partitions, SCHEMA)
    assert boundaries.num_rows == partitions - 1
    all_keys = pa.array((np.concatenate(tasks) * 1e6).astype(np.int64))
    rows = SortCodes.of_columns([all_keys], [key], len(all_keys))
    ranges = ranges_of(rows, SortCodes.of_columns(boundaries.columns, [key], partitions - 1))
    assert np.bincount(ranges).max() < 1.7 * len(all_keys) / partitions


def test_boundaries_are_distinct_values_also_with_a_heavy_one() -> None:
    keys = np.concatenate([np.full(6000, 2000), np.arange(4000)])
    found = sample(batches(keys), 0, rows=2000)
    boundaries = _boundaries(found, (SortKey("k"),), 10, SCHEMA).column(0).to_pylist()
    assert boundaries == sorted(set(boundaries))
    assert 4 <= len(boundaries) <= 6
    assert 2000 in boundaries
    one = sample(batches(np.full(500, 7)), 0)
    for samples in (one, []):
        assert _boundaries(samples, (SortKey("k"),), 4, SCHEMA).num_rows == 0


def test_the_driver_holds_a_bounded_part_of_very_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_client.pipeline.ranges._HELD_BYTES", 20_000)
    samples = [found for task in range(40) for found in sample(batches(np.arange(1000) + task), task)]
    held = _held(samples)
    assert sum(batch.nbytes for batch in held) <= 20_000
    assert [sum(batch.column("weight").to_pylist()) for batch in held] == [pytest.approx(1000)] * 40
