"""Expressions tell their parts, whatever the names of their columns are."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.compute import field

from spark_client.arrow import parts_of
from spark_client.arrow.expression_parts import ColumnField, FunctionCall, Value

NAMES = ("end", "call: 'x'", 'a "(b) and', "")


def test_calls_come_after_their_arguments() -> None:
    expression = ~(field("a") > 1) & pc.if_else(
        field("b"), field("s", "x", "y").is_null(nan_is_null=True), True
    )
    assert parts_of(expression) == [
        ColumnField("a"),
        Value(pa.scalar(1)),
        FunctionCall("greater", 2),
        FunctionCall("invert", 1),
        ColumnField("b"),
        ColumnField("s", nested=True),
        FunctionCall("is_null", 1),
        Value(pa.scalar(True)),
        FunctionCall("if_else", 3),
        FunctionCall("and_kleene", 2),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_column_may_have_any_name(name: str) -> None:
    assert parts_of(field(name) == name) == [
        ColumnField(name),
        Value(pa.scalar(name)),
        FunctionCall("equal", 2),
    ]


def test_a_function_of_nothing_takes_no_argument() -> None:
    drawn = pc.Expression._call("random", [], pc.RandomOptions())
    assert parts_of(drawn < field("a")) == [
        FunctionCall("random", 0),
        ColumnField("a"),
        FunctionCall("less", 2),
    ]


def test_a_column_by_its_place_tells_nothing() -> None:
    assert parts_of(field(1) == 1) is None
