"""Cogroups: one call for each key of either side, with all of its rows, whatever fits the memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_client.arrow import Declared
from spark_client.placement import PlacedKeys
from spark_client.spill import TaskMemory
from spark_client.steps import BatchLimits, Both, GroupedSide, GroupStage, Pass, run
from tests.support.examples import examples

Row = tuple[Any, ...]
RESULT = pa.schema([("key", pa.string()), ("left", pa.list_(pa.int64())), ("right", pa.list_(pa.int64()))])
LEFT_KEY, RIGHT_KEY = "k", "other_key"


def side(name: str, kind: pa.DataType, compared: pa.DataType) -> GroupedSide:
    schema = pa.schema([(name, kind), ("number", pa.int64())])
    return GroupedSide(
        (name,), (compared,), schema, PlacedKeys("repartition(1)", pa.schema([(name, kind)]), 1)
    )


def stage(
    fn: Any, left: pa.DataType, right: pa.DataType, *, with_keys: bool = True, iterates: bool = False
) -> GroupStage:
    compared = left if left == right else pa.float64()
    declared = Declared("stage 1 (cogroup fn)", RESULT, by_name=True)
    sides = side(LEFT_KEY, left, compared), side(RIGHT_KEY, right, compared)
    return GroupStage(fn, declared, sides, with_keys, iterates)


def result(keys: tuple[Any, ...], left: list[int], right: list[int]) -> pa.Table:
    return pa.table({"key": [shown(keys[0].as_py())], "left": [left], "right": [right]}, schema=RESULT)


def shown(key: Any) -> str:
    """The same for equal keys."""
    if isinstance(key, dict):
        return str({name: shown(value) for name, value in sorted(key.items())})
    if isinstance(key, int | float):
        return "nan" if math.isnan(key) else str(float(key) + 0.0)
    return repr(key)


def of_tables(keys: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    assert isinstance(keys, tuple)
    assert (left.schema.names, right.schema.names) == ([LEFT_KEY, "number"], [RIGHT_KEY, "number"])
    return result(keys, left.column("number").to_pylist(), right.column("number").to_pylist())


def of_batches(
    keys: tuple[Any, ...], left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    numbers = [
        [number for batch in rows for number in batch.column("number").to_pylist()] for rows in (left, right)
    ]
    yield from result(keys, *numbers).to_batches()


def batches(keys: Sequence[Any], schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, max(1, len(keys)), size):
        part = keys[at : at + size]
        numbers = pa.array(range(at, at + len(part)), pa.int64())
        yield pa.RecordBatch.from_arrays([pa.array(part, schema.types[0]), numbers], schema=schema)


def cogrouped(
    of: GroupStage, left: Sequence[Any], right: Sequence[Any], how: Pass, size: int = 3
) -> list[Row]:
    both = Both(
        *(batches(rows, of_side.schema, size) for rows, of_side in zip((left, right), of.sides, strict=True))
    )
    return sorted(tuple(row.values()) for batch in run([of], both, how) for row in batch.to_pylist())


def model(left: Sequence[Any], right: Sequence[Any]) -> list[Row]:
    found: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, keys in enumerate((left, right)):
        for row, key in enumerate(keys):
            found[shown(key)][number].append(row)
    return sorted((key, *rows) for key, rows in found.items())


NAMES = st.sampled_from([None, "", "a", "b", "a longer name than the others"])
NUMBERS = st.sampled_from([None, 0, 1, -3])
FLOATS = st.sampled_from([None, 0.0, -0.0, 1.0, math.nan, -math.nan, math.inf])
PAIR = pa.struct([("x", pa.int32()), ("y", pa.float64())])
PAIRS = st.one_of(st.none(), st.fixed_dictionaries({"x": NUMBERS, "y": FLOATS}))
KINDS = {
    "texts": (pa.string(), pa.string(), NAMES, NAMES),
    "floats": (pa.float64(), pa.float64(), FLOATS, FLOATS),
    "numbers of two types": (pa.int64(), pa.float32(), NUMBERS, FLOATS),
    "structs": (PAIR, PAIR, PAIRS, PAIRS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_key_has_its_rows_of_both_sides_within_any_budget(kind: str) -> None:
    left_type, right_type, left, right = KINDS[kind]

    @settings(max_examples=examples(0.5))
    @given(
        st.lists(left, max_size=30),
        st.lists(right, max_size=30),
        st.booleans(),
        st.sampled_from([1 << 24, 3000, 300]),
        st.sampled_from([1, 4, 50]),
    )
    def check(lefts: list[Any], rights: list[Any], iterates: bool, budget_bytes: int, size: int) -> None:
        of = stage(of_batches if iterates else of_tables, left_type, right_type, iterates=iterates)
        how = Pass(partition=0, memory=TaskMemory(budget_bytes))
        assert cogrouped(of, lefts, rights, how, size) == model(lefts, rights)

    check()


def test_a_group_beyond_the_budget_is_streamed_in_batches_within_the_limits() -> None:
    most = 0

    def fn(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal most
        counts = []
        for rows in (left, right):
            count = 0
            for batch in rows:
                most = max(most, batch.num_rows)
                count += batch.num_rows
            counts.append([count])
        yield pa.record_batch({"key": ["all"], "left": [counts[0]], "right": [counts[1]]}, schema=RESULT)

    memory = TaskMemory(budget_bytes=64 << 10)
    of = stage(fn, pa.int64(), pa.int64(), with_keys=False, iterates=True)
    how = Pass(partition=0, limits=BatchLimits(rows=4), memory=memory)
    assert cogrouped(of, [7] * 20_000 + [None], [7] * 9000, how, size=5000) == [
        ("all", [1], [0]),
        ("all", [20_000], [9000]),
    ]
    assert memory.spilled_bytes > 20_000 * 16
    assert most == 4


def test_keys_of_one_hash_beyond_the_budget_are_told_apart() -> None:
    # The hash of a null is that of nothing, so a struct of nulls has the hash of the null struct.
    kind = pa.struct([("x", pa.int32())])
    keys = [None, {"x": None}] * 500
    of = stage(of_batches, kind, kind, iterates=True)
    memory = TaskMemory(budget_bytes=6 << 10)
    found = cogrouped(of, keys, keys[:3], Pass(partition=0, memory=memory), size=1000)
    assert found == model(keys, keys[:3])
    assert memory.spilled_bytes


def test_sides_without_rows_make_no_group() -> None:
    of = stage(lambda *_: pytest.fail("called"), pa.int64(), pa.int64())
    assert cogrouped(of, [], [], Pass(partition=0)) == []
