"""Groups within the budget and beyond it: one call for each key, with all its rows, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.placement import PlacedKeys, partition_ids
from spark_client.spill import TaskMemory
from spark_client.steps import BatchLimits, GroupedSide, GroupStage, Pass, key_groups, run

SCHEMA = pa.schema([("k", pa.list_(pa.int32())), ("row", pa.int64()), ("text", pa.string())])
RESULT = pa.schema([("k", pa.string()), ("rows", pa.list_(pa.int64()))])
Keys = list[list[list[int | None] | None]]


def stage_of(fn: Any, *, iterates: bool = False, with_keys: bool = False, **options: Any) -> GroupStage:
    declared = Declared("stage 1 (applyInArrow fn)", options.pop("declared", RESULT), by_name=True)
    side = GroupedSide.alone(("k",), options.pop("schema", SCHEMA), **options)
    return GroupStage(fn, declared, (side,), with_keys, iterates)


def batches_of(keys: Keys) -> list[pa.RecordBatch]:
    found, row = [], 0
    for some in keys:
        columns = [
            pa.array(some, SCHEMA.field("k").type),
            pa.array(range(row, row + len(some)), pa.int64()),
            pa.array(["t" * (row % 9)] * len(some), pa.string()),
        ]
        found.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        row += len(some)
    return found


def expected_of(keys: Keys) -> dict[str, list[int]]:
    expected: dict[str, list[int]] = {}
    for row, key in enumerate(key for some in keys for key in some):
        expected.setdefault(repr(key), []).append(row)
    return expected


def whole(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
    assert all(key == keys[0] for key in table.column("k"))
    assert table.column("row").num_chunks == 1
    return pa.table({"k": [repr(keys[0].as_py())], "rows": [table.column("row").to_pylist()]})


def by_batch(keys: tuple[Any, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = [row for batch in batches for row in batch.column("row").to_pylist()]
    yield pa.record_batch({"k": [repr(keys[0].as_py())], "rows": [rows]})


def results(stage: GroupStage, batches: list[pa.RecordBatch], memory: TaskMemory) -> list[dict[str, Any]]:
    given = run([stage], iter(batches), Pass(limits=BatchLimits(rows=7), memory=memory))
    return [row for batch in given for row in batch.to_pylist()]


def shared(columns: Any, rows: int) -> Any:
    """Two hashes for all keys."""
    return np.array([hash(repr(value)) % 2 for value in columns[0].to_pylist()], np.uint64)


LISTS = st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=2))


@given(
    st.lists(st.lists(LISTS, max_size=40), max_size=8),
    st.sampled_from([1, 900, 4_000, 1 << 20]),
    st.booleans(),
    st.booleans(),
)
def test_groups_equal_a_dictionary_of_lists_for_any_budget_and_any_hash(
    keys: Keys, budget_bytes: int, iterates: bool, collide: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        if collide:
            patched.setattr(key_groups, "row_hashes", shared)
        stage = stage_of(by_batch if iterates else whole, iterates=iterates, with_keys=True)
        memory = TaskMemory(budget_bytes)
        found = results(stage, batches_of(keys), memory)
    expected = [{"k": key, "rows": rows} for key, rows in expected_of(keys).items()]
    if not memory.spilled_bytes:
        assert found == expected
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_a_function_may_stop_early_and_may_give_back_the_batches_it_got() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    given = [
        pa.record_batch([pa.array([7] * 500 + [number]), pa.array(range(501))], schema=schema)
        for number in range(20)
    ]

    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            return

    stage = stage_of(first, iterates=True, schema=schema, declared=schema)
    memory = TaskMemory(32 << 10)
    found = [row for batch in run([stage], iter(given), Pass(memory=memory)) for row in batch.to_pylist()]
    assert memory.spilled_bytes > 0
    assert {row["k"] for row in found} == {7, *range(20)}

    def every(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    stage = stage_of(every, iterates=True, schema=schema, declared=schema)
    found = [row for batch in run([stage], iter(given), Pass(memory=memory)) for row in batch.to_pylist()]
    rows = [row for batch in given for row in batch.to_pylist()]
    assert [row["v"] for row in found if row["k"] == 7] == [row["v"] for row in rows if row["k"] == 7]
    assert len(found) == len(rows)


def test_a_group_many_times_the_budget_takes_memory_of_the_budget_if_the_function_iterates() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.binary())])
    declared = pa.schema([("k", pa.int64()), ("rows", pa.int64())])
    memory = TaskMemory(1 << 20)
    before_bytes = pa.total_allocated_bytes()
    peak_bytes = 0

    def given() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            keys = np.full(256, -1, np.int64)
            keys[::64] = number
            yield pa.record_batch([pa.array(keys), pa.array([bytes(1000)] * 256)], schema=schema)

    def count(keys: tuple[Any, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal peak_bytes
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            peak_bytes = max(peak_bytes, pa.total_allocated_bytes() - before_bytes)
        yield pa.record_batch([pa.array([keys[0].as_py()]), pa.array([rows])], schema=declared)

    stage = stage_of(count, iterates=True, with_keys=True, schema=schema, declared=declared)
    found = [row for b in run([stage], given(), Pass(memory=memory)) for row in b.to_pylist()]
    assert {row["k"]: row["rows"] for row in found} == {
        -1: 100 * 252,
        **dict.fromkeys(range(100), 4),
    }
    assert len(found) == 101
    assert memory.spilled_bytes > 24 * memory.budget_bytes
    assert peak_bytes < memory.budget_bytes * 5 // 4


def test_results_that_wait_to_be_joined_do_not_keep_the_rows_of_their_groups() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.binary())])
    given = (
        pa.record_batch([pa.array(np.full(1000, number)), pa.array([bytes(1000)] * 1000)], schema=schema)
        for number in range(60)
    )
    held = []

    def head(table: pa.Table) -> pa.Table:
        held.append(pa.total_allocated_bytes())
        return table.slice(0, 100)

    stage = stage_of(head, schema=schema, declared=schema)
    memory = TaskMemory(8 << 20)
    assert sum(batch.num_rows for batch in run([stage], given, Pass(memory=memory))) == 6_000
    assert memory.spilled_bytes > 0
    assert max(held[10:]) - held[0] < 16 << 20


@pytest.mark.parametrize("iterates", [False, True])
def test_changed_keys_are_refused_beyond_the_budget_too(iterates: bool) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    keys = pa.record_batch([pa.array(range(50)), pa.array(range(50))], schema=schema)
    here = keys.filter(pa.array(partition_ids(keys, ["k"], 3) == 0))
    placed = PlacedKeys("repartition(3, 'k')", pa.schema([("k", pa.int64())]), 3)
    fn = (lambda batches: batches) if iterates else (lambda table: table)
    stage = stage_of(fn, iterates=iterates, schema=schema, declared=schema, placed=placed)
    for partition, memory in ((0, TaskMemory(8_000)), (1, TaskMemory(8_000)), (1, TaskMemory())):
        how = Pass(partition=partition, memory=memory)
        given = [pa.concat_batches([here] * 20)] * 5
        if partition == 0:
            assert sum(batch.num_rows for batch in run([stage], iter(given), how)) == 100 * here.num_rows
        else:
            with pytest.raises(InvalidRequest, match=r"repartition\(3, 'k'\) places it in partition 0"):
                list(run([stage], iter(given), how))


def test_an_error_of_the_function_names_the_stage_beyond_the_budget_too() -> None:
    def bad(_: Any) -> Any:
        raise KeyError("what the function said")

    for iterates in (False, True):
        stage = stage_of(bad, iterates=iterates)
        for budget_bytes in (8_000, 1 << 20):
            with pytest.raises(KeyError) as caught:
                results(stage, batches_of([[[1]] * 100] * 5), TaskMemory(budget_bytes))
            assert caught.value.__notes__ == ["raised in stage 1 (applyInArrow fn)"]
