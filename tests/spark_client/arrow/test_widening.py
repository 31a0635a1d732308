"""Columns in wider types, against Python's own decimals and floats."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.arrow import widened


@st.composite
def decimals(draw: st.DrawFn) -> pa.Array:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    most = 10**precision - 1
    unscaled = st.one_of(
        st.none(), st.integers(-most, most), st.integers(-min(most, 10**6), min(most, 10**6))
    )
    with localcontext() as context:
        context.prec = 76
        numbers = [
            None if each is None else Decimal(each).scaleb(-scale)
            for each in draw(st.lists(unscaled, max_size=8))
        ]
    return pa.array(numbers, pa.decimal128(precision, scale))


@given(decimals(), st.integers(0, 3))
def test_a_decimal_becomes_the_nearest_double(column: pa.Array, start: int) -> None:
    part = column[start:]
    found = widened(part, pa.float64())
    found.validate(full=True)
    assert found.to_pylist() == [None if each is None else float(each) for each in part.to_pylist()]


@given(decimals(), st.integers(0, 3), st.integers(0, 38))
def test_a_decimal_with_more_digits_has_the_same_values(column: pa.Array, start: int, more: int) -> None:
    part = column[start:]
    kind = pa.decimal128(min(38, column.type.precision + more), column.type.scale)
    found = widened(part, kind)
    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == part.to_pylist()


PRICE, TEXT = pa.decimal128(10, 2), pa.string()
A, B = Decimal("0.35"), Decimal("0.41")
"""Arrow's own cast gives other doubles for both."""
PAIRS = [[A, None], None, [B, A], [A, B]]


@pytest.mark.parametrize(
    ("rows", "before", "after"),
    [
        ([[Decimal("1.10"), None], None, [Decimal("0.10")]], pa.list_(PRICE), pa.list_(pa.float64())),
        (
            [{"a": Decimal("0.10"), "b": [1]}, None, {"a": None, "b": None}],
            pa.struct([("a", PRICE), ("b", pa.list_(pa.int32()))]),
            pa.struct([("a", pa.float64()), ("b", pa.list_(pa.int64()))]),
        ),
        ([[("x", A)], None, []], pa.map_(TEXT, PRICE), pa.map_(TEXT, pa.float64())),
        (
            [PAIRS[:2], None, PAIRS[2:]],
            pa.list_(pa.list_(PRICE)),
            pa.list_(pa.list_(pa.float64())),
        ),
        (
            [{"a": pair} for pair in PAIRS],
            pa.struct([("a", pa.list_(PRICE))]),
            pa.struct([("a", pa.list_(pa.float64()))]),
        ),
        (
            [[[("x", A)], None], None, [[], [("x", B)]]],
            pa.list_(pa.map_(TEXT, PRICE)),
            pa.list_(pa.map_(TEXT, pa.float64())),
        ),
    ],
)
def test_parts_of_nested_columns_are_widened(
    rows: list[Any], before: pa.DataType, after: pa.DataType
) -> None:
    column = pa.array(rows, before)
    for part, expected in ((column, rows), (column[1:], rows[1:]), (column[2:], rows[2:])):
        found = widened(part, after)
        found.validate(full=True)
        assert found == pa.array(_as_floats(expected), after)


def test_long_integers_in_a_list_become_the_nearest_doubles() -> None:
    column = pa.array([[2**53 + 1], [], [-3]], pa.list_(pa.int64()))
    assert widened(column, pa.list_(pa.float64())).to_pylist() == [[2.0**53], [], [-3.0]]


def _as_floats(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {name: _as_floats(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_as_floats(part) for part in value)
    return value


def test_another_cast_that_would_change_a_value_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        widened(pa.array([300]), pa.int8())
