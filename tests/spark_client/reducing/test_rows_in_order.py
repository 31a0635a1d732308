"""Rows in the order of their keys are merged as all others are, without a hash table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.protocol import InvalidRequest
from spark_client.reducing import Reduction
from spark_client.reducing.group_states import Extreme, Present, Product, RowCount, StateColumn, Sum
from spark_client.reducing.reduction import MERGED_ROWS, MERGED_ROWS_OF_FEW_GROUPS, RowsInOrder
from tests.support.examples import examples

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("j", pa.int32()),
        ("v", pa.int64()),
        ("d", pa.decimal128(9, 2)),
        ("f", pa.float64()),
        ("t", pa.date32()),
    ]
)
STATES: list[StateColumn] = [
    RowCount(),
    Present("v"),
    Sum("v", pa.int64()),
    Sum("d", pa.decimal128(19, 2)),
    Sum("f", pa.float64()),
    Extreme("v", pa.int64(), "min"),
    Extreme("t", pa.date32(), "max"),
    Extreme.of("f", pa.float64(), "max"),
]

rows = st.fixed_dictionaries(
    {
        "k": st.integers(-3, 3),
        "j": st.integers(0, 1),
        "v": st.none() | st.integers(-(2**50), 2**50),
        "d": st.none() | st.decimals(-9_999_999, 9_999_999, places=2),
        "f": st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf")]),
        "t": st.none() | st.dates(date(1, 1, 1), date(9999, 12, 31)),
    }
)


def reduction(keys: tuple[str, ...], states: list[StateColumn], carried: tuple[str, ...] = ()) -> Reduction:
    fields = [SCHEMA.field(name) for name in (*keys, *carried)]
    schema = pa.schema([*fields, *((f"s{number}", state.type) for number, state in enumerate(states))])
    return Reduction(keys, tuple(states), schema, "aggregate", carried)


def lifted(by: Reduction, tables: list[list[dict[str, Any]]]) -> list[pa.RecordBatch]:
    return [by.lift(pa.RecordBatch.from_pylist(table, SCHEMA)) for table in tables]


def as_set(table: pa.Table) -> set[str]:
    # -0.0 and 0.0 are told apart.
    return {repr(tuple(row.values())) for row in table.to_pylist()}


@settings(max_examples=examples(0.5))
@given(st.lists(rows, max_size=12), st.lists(st.integers(0, 12), max_size=3), st.randoms())
@pytest.mark.parametrize("keys", [("k",), ("k", "j")])
def test_rows_in_order_become_the_groups_of_arrow_s_aggregation(
    keys: tuple[str, ...], given: list[dict[str, Any]], cuts: list[int], shuffled: Any
) -> None:
    by = reduction(keys, STATES)
    ordered = sorted(given, key=lambda row: tuple(row[key] for key in keys))
    bounds = [0, *sorted(min(cut, len(ordered)) for cut in cuts), len(ordered)]
    parts = [ordered[start:end] for start, end in pairwise(bounds)]
    shuffled.shuffle(parts)
    found = by.merge(lifted(by, parts))
    found.validate(full=True)
    with mock.patch.object(RowsInOrder, "of", return_value=None):
        expected = by.merge(lifted(by, parts))
    assert found.num_rows == expected.num_rows
    assert as_set(found) == as_set(expected)


def test_rows_in_order_need_no_hash_table() -> None:
    by = reduction(("k",), STATES)
    given = [{"k": number // 3, "v": number, "d": Decimal(number), "f": 1.0} for number in range(30)]
    with mock.patch.object(Reduction, "_aggregate", side_effect=AssertionError):
        # Of several tasks, and the last one begins with the group with which the first one ends.
        found = by.merge(lifted(by, [given[13:], given[:13]]))
    assert found.column("k").to_pylist() == [*range(10)]
    assert found.column("s0").to_pylist() == [3] * 10
    assert found.column("s2").to_pylist() == [9 * number + 3 for number in range(10)]


def test_groups_of_one_row_are_kept_in_memory_of_their_own() -> None:
    """A function may fill one array again and again, and is asked for its next batch while the last one is held."""
    count = MERGED_ROWS + 1
    numbers = np.empty(count, np.int64)

    def refilled() -> Iterator[pa.RecordBatch]:
        for first in (0, count, 2 * count):
            numbers[:] = np.arange(first, first + count)
            yield pa.record_batch([pa.array(numbers)], names=["k"])

    schema = pa.schema([("k", pa.int64()), ("s0", pa.int64())])
    by = Reduction(("k",), (Sum("k", pa.int64()),), schema, "aggregate")
    found = pa.concat_tables(by.reduced(by.lifted(refilled()), None))
    expected = [*range(3 * count)]
    assert found.to_pydict() == {"k": expected, "s0": expected}


def test_large_batches_of_few_groups_are_merged_one_by_one_and_small_ones_are_kept() -> None:
    schema = pa.schema([("k", pa.string()), ("s0", pa.int64()), ("s1", pa.decimal128(19, 2))])
    by = Reduction(("k",), (RowCount(), Sum("d", schema.field("s1").type)), schema, "aggregate")
    sizes = [MERGED_ROWS_OF_FEW_GROUPS, MERGED_ROWS, MERGED_ROWS_OF_FEW_GROUPS]
    batches = [
        pa.record_batch(
            {"k": [*"ab", None] * (size // 3), "d": [Decimal("1.00"), None, Decimal(0)] * (size // 3)}
        )
        for size in (count - count % 3 + 3 for count in sizes)
    ]
    batches = [batch.set_column(1, "d", batch.column("d").cast(pa.decimal128(9, 2))) for batch in batches]
    every = [*by.lifted(iter(batches))]
    assert [batch.num_rows for batch in every] == [3, batches[1].num_rows, 3]
    rows = sum(batch.num_rows for batch in batches) // 3
    expected = {"k": ["a", "b", None], "s0": [rows] * 3, "s1": [Decimal(rows), None, Decimal(0)]}
    assert by.merge(every).to_pydict() == expected


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param([[1, 2, 1]], id="a key comes back"),
        pytest.param([[1, 3], [2, 4]], id="ranges overlap"),
        pytest.param([[1, None]], id="a null"),
        pytest.param([[3, 2, 1]], id="descending"),
        pytest.param([], id="no rows"),
    ],
)
def test_other_rows_are_in_no_order(tables: list[list[int | None]]) -> None:
    by = reduction(("k",), [RowCount()])
    batches = lifted(by, [[{"k": key} for key in keys] for keys in tables])
    assert RowsInOrder.of(batches, by.schema, 1) is None


def test_keys_of_text_and_floats_are_in_no_order() -> None:
    for kind, keys in [(pa.string(), ["a", "b"]), (pa.float64(), [float("nan"), 1.0])]:
        schema = pa.schema([("k", kind)])
        batch = pa.RecordBatch.from_arrays([pa.array(keys, kind)], schema=schema)
        assert RowsInOrder.of([batch], schema, 1) is None


def test_a_carried_column_is_of_a_row_of_its_group() -> None:
    by = reduction(("k",), [], carried=("v",))
    batches = lifted(by, [[{"k": 1, "v": 10}, {"k": 1, "v": 11}, {"k": 2, "v": 20}]])
    assert by.merge(batches).to_pydict() == {"k": [1, 2], "v": [10, 20]}


def test_a_product_is_left_to_arrow() -> None:
    by = reduction(("k",), [Product("f")])
    batches = lifted(by, [[{"k": 1, "f": 2.0}, {"k": 1, "f": 4.0}]])
    assert by.merge(batches).to_pydict() == {"k": [1], "s0": [8.0]}


def test_a_sum_of_decimals_beyond_64_bits_is_exact() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.decimal128(38, 0))])
    given = [(1, 10**30), (1, -(10**30) + 7), (2, 2**62), (2, 2**62), (3, None), (3, None)]
    by = Reduction(
        ("k",),
        (Sum("v", pa.decimal128(38, 0)),),
        pa.schema([("k", pa.int64()), ("s", pa.decimal128(38, 0))]),
        "",
    )
    rows = [{"k": key, "v": None if value is None else Decimal(value)} for key, value in given]
    found = by.merge([by.lift(pa.RecordBatch.from_pylist(rows, schema))])
    assert found.column("s").to_pylist() == [Decimal(7), Decimal(2**63), None]


def test_a_sum_in_order_that_leaves_its_type_is_an_error() -> None:
    by = reduction(("k",), [Sum("v", pa.int64())])
    batches = lifted(by, [[{"k": 1, "v": 2**63 - 1}, {"k": 1, "v": 1}]])
    with pytest.raises(InvalidRequest, match="does not fit"):
        by.merge(batches)


def test_values_under_nulls_do_not_count() -> None:
    valid = pa.py_buffer(np.packbits([True, False, True, False], bitorder="little"))
    hidden = pa.py_buffer(np.array([1, 99, 2, -99]))
    column = pa.Array.from_buffers(pa.int64(), 4, [valid, hidden])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 1, 2, 3]), column], names=["k", "s0"])
    by = Reduction(("k",), (Sum("s0", pa.int64()),), batch.schema, "")
    assert by.merge([batch]).to_pydict() == {"k": [1, 2, 3], "s0": [1, 2, None]}
