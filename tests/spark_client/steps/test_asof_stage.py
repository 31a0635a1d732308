"""As-of joins in one task: pandas.merge_asof on random rows, within the memory and beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_client.arrow import Declared
from spark_client.joining import AsOf, Column, Direction, JoinPlan, KeyForm, MatchKeys
from spark_client.spill import TaskMemory
from spark_client.steps import AsofStage, Both, Pass
from tests.support.arrow_peak import arrow_peak
from tests.support.examples import examples

TINY, ROOMY = 1, 1 << 30
Rows = list[tuple[Any, Any]]


def stage(left: pa.Schema, right: pa.Schema, as_of: AsOf) -> AsofStage:
    form = (KeyForm.of(left.field("k").type, right.field("k").type, "test"),)
    columns = (Column("k", None), Column("t", None), Column("row", None), Column(None, "other"))
    schema = pa.schema([left.field("k"), left.field("t"), ("row", pa.int64()), ("other", pa.int64())])
    plan = JoinPlan("left", MatchKeys(("k",), form), MatchKeys(("k",), form), columns, left, right, schema)
    return AsofStage(Declared("asof", schema), plan, as_of)


def table(rows: Rows, number: str, kinds: tuple[pa.DataType, pa.DataType]) -> pa.Table:
    keys, times = zip(*rows, strict=True) if rows else ((), ())
    numbers = pa.array(range(len(rows)), pa.int64())
    return pa.table({"k": pa.array(keys, kinds[0]), "t": pa.array(times, kinds[1]), number: numbers})


def filled(side: pa.Table) -> bool:
    """Whether it has rows."""
    return bool(side.num_rows)


def joined(
    left: pa.Table, right: pa.Table, as_of: AsOf, budget_bytes: int, rows: int = 3
) -> list[tuple[Any, ...]]:
    memory = TaskMemory(budget_bytes)
    both = Both(iter(left.to_batches(max_chunksize=rows)), iter(right.to_batches(max_chunksize=rows)))
    found = list(stage(left.schema, right.schema, as_of).run(both, Pass(memory=memory)))
    assert bool(memory.spilled_bytes) == (budget_bytes == TINY and left.num_rows > 0 and filled(right))
    assert all(batch.num_rows for batch in found)
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


def expected(left: Rows, right: Rows, as_of: AsOf) -> list[tuple[Any, ...]]:
    """By pandas; rows with a null match nothing."""

    def frame(rows: Rows, number: str) -> pd.DataFrame:
        there = [(k, t, row) for row, (k, t) in enumerate(rows) if k is not None and t is not None]
        # Stable, so that rows of one time keep their order.
        return pd.DataFrame(sorted(there, key=lambda row: row[1]), columns=["k", "t", number])

    one, two = frame(left, "row"), frame(right, "other")
    matches: dict[int, int | None] = {}
    if len(one) and len(two):
        found = pd.merge_asof(
            one,
            two.astype({"k": one["k"].dtype, "t": one["t"].dtype}),
            on="t",
            by="k",
            direction=as_of.direction,
            tolerance=as_of.tolerance,
            allow_exact_matches=as_of.exact,
        )
        matches = {
            int(row): None if math.isnan(other) else int(other)
            for row, other in zip(found["row"], found["other"], strict=True)
        }
    return [(k, t, row, matches.get(row)) for row, (k, t) in enumerate(left)]


times = st.none() | st.integers(-4, 4)
sides = st.lists(st.tuples(st.none() | st.sampled_from(["a", "b", ""]), times), max_size=25)


@settings(max_examples=examples(0.5))
@given(
    sides,
    sides,
    st.sampled_from(["backward", "forward", "nearest"]),
    st.tuples(st.none() | st.integers(0, 3), st.booleans()),
    st.sampled_from([TINY, ROOMY]),
)
def test_every_left_row_has_the_match_that_pandas_finds(
    left: Rows, right: Rows, direction: Direction, limits: tuple[int | None, bool], budget_bytes: int
) -> None:
    as_of = AsOf("t", "t", pa.int64(), direction, *limits)
    kinds = (pa.string(), pa.int64())
    found = joined(table(left, "row", kinds), table(right, "other", kinds), as_of, budget_bytes)
    if budget_bytes == ROOMY or not right:
        assert [row[2] for row in found] == list(range(len(left))), "in the left's order"
    assert sorted(found, key=lambda row: row[2]) == expected(left, right, as_of)


@pytest.mark.parametrize("budget_bytes", [TINY, ROOMY])
def test_floats_match_by_value_and_nan_is_no_time(budget_bytes: int) -> None:
    left = [(0.0, -0.0), (math.nan, 1.0), (1.0, math.nan), (1.0, math.inf)]
    right = [(-0.0, 0.0), (-math.nan, 0.5), (1.0, math.inf), (1.0, math.nan)]
    kinds = (pa.float64(), pa.float64())
    as_of = AsOf("t", "t", pa.float64(), "nearest", 0.5)
    found = joined(table(left, "row", kinds), table(right, "other", kinds), as_of, budget_bytes)
    assert sorted((row, other) for *_, row, other in found) == [(0, 0), (1, 1), (2, None), (3, 2)]


@pytest.mark.parametrize("budget_bytes", [TINY, ROOMY])
def test_distances_beyond_int64_are_no_short_ones(budget_bytes: int) -> None:
    low, high = -(1 << 63), (1 << 63) - 1
    kinds = (pa.int64(), pa.int64())
    as_of = AsOf("t", "t", pa.int64(), "nearest", 10)
    left, right = table([(1, low), (1, high - 3)], "row", kinds), table([(1, high)], "other", kinds)
    assert [other for *_, other in joined(left, right, as_of, budget_bytes)] == [None, 0]


@pytest.mark.parametrize("budget_bytes", [TINY, ROOMY])
def test_sides_of_different_types_are_compared_in_the_wider_one(budget_bytes: int) -> None:
    left = table([(1, 5), (2, 5)], "row", (pa.int64(), pa.int32()))
    right = table([(1, 4.5)], "other", (pa.int16(), pa.float64()))
    found = joined(left, right, AsOf("t", "t", pa.float64()), budget_bytes)
    assert found == [(1, 5, 0, 0), (2, 5, 1, None)]


def test_memory_follows_the_budget_and_not_the_rows_of_a_key() -> None:
    budget_bytes = 2 << 20
    rng = np.random.default_rng(3)
    left_schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("row", pa.int64())])
    right_schema = pa.schema(
        [("k", pa.int64()), ("t", pa.int64()), ("other", pa.int64()), ("wide", pa.binary(100))]
    )

    def source(schema: pa.Schema, batches: int) -> Iterator[pa.RecordBatch]:
        for _ in range(batches):
            numbers = [pa.array(rng.integers(0, most, 8192)) for most in (2, 1 << 40, 9)]
            wide = pa.Array.from_buffers(pa.binary(100), 8192, [None, pa.py_buffer(rng.bytes(100 * 8192))])
            yield pa.RecordBatch.from_arrays([*numbers, wide][: len(schema)], schema=schema)

    memory = TaskMemory(budget_bytes)
    both = Both(source(left_schema, 10), source(right_schema, 15))
    joining = stage(left_schema, right_schema, AsOf("t", "t", pa.int64()))
    with arrow_peak() as pool:
        count = sum(batch.num_rows for batch in joining.run(both, Pass(memory=memory)))
    assert count == 10 * 8192
    assert memory.spilled_bytes > 15 << 20
    assert pool.max_memory() <= budget_bytes


def test_each_left_row_may_be_joined_apart() -> None:
    kinds = (pa.int64(), pa.int64())
    found = stage(
        table([], "row", kinds).schema, table([], "other", kinds).schema, AsOf("t", "t", pa.int64())
    )
    assert found.divisible_sides == {"left"}
    assert not found.divisible
