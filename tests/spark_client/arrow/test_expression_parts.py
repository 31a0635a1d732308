"""Expressions tell their parts, whatever the names of their columns are."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.compute import field

from spark_client.arrow import cannot_fail, conjuncts, parts_of, renamed
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


def test_conditions_joined_by_and_are_taken_apart_with_their_options() -> None:
    one, two, three = field("a") > 1, field("b").isin(["x"]), field("s", "call") == field("and_kleene")
    parts = conjuncts(one & (two & three))
    assert [str(part) for part in parts] == [str(each) for each in (one, two, three)]
    assert len(conjuncts(one | two)) == 1
    assert len(conjuncts(field("s", "x") & field("b"))) == 2
    whole = ~(one & two)
    assert conjuncts(whole)[0] is whole


def test_columns_get_other_names_and_fields_inside_of_them_keep_theirs() -> None:
    expression = (field("a") > 1) & pc.match_like(field("b"), "%a%") & (field("s", "a") == 2)
    other = renamed(expression, {"a": "b", "b": "a", "s": "t"})
    assert str(other) == str((field("b") > 1) & pc.match_like(field("a"), "%a%") & (field("t", "a") == 2))
    assert renamed(expression, {"a": "a"}) is expression
    assert renamed(field(0) > 1, {"a": "b"}) is None, "of a place"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (field("a") > 5, True),
        (field("a") > 5.5, False),  # Arrow casts the column
        (field("f") > 5, True),  # and here the constant
        (field("a") > field("f"), False),
        (field("a") + 1 > 5, False),
        (field("s").isin(["x"]) & ~pc.is_nan(field("f")) | field("a").is_null(), True),
        (pc.match_like(field("s"), "x%"), True),
        (field("s").cast(pa.int64()) > 1, False),
        (field("n", "x") > 1, False),
        (field(0) > 1, False),
    ],
)
def test_a_condition_of_comparisons_of_one_kind_cannot_fail(condition: pc.Expression, expected: bool) -> None:
    schema = pa.schema(
        [("a", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("n", pa.struct([("x", pa.int64())]))]
    )
    assert cannot_fail(condition, schema) == expected
