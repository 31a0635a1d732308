"""The columns of an expression are found by its parts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_client.arrow.expression_parts import needed

ODD = pa.schema(
    [
        ("a", pa.int64()),
        ("a b) in (c", pa.int64()),
        ("s", pa.struct([("a", pa.int64()), ("x", pa.int64())])),
        ("t", pa.string()),
        ("", pa.int64()),
    ]
)


def test_the_columns_of_an_expression_are_found_among_many() -> None:
    wide = pa.schema([(f"c{number}", pa.int64()) for number in range(300)])
    assert needed((pc.field("c7") > 1) & (pc.field("c250") < pc.field("c3")), wide) == ["c3", "c7", "c250"]
    assert needed(pc.scalar(True), wide) == []


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (pc.field("a b) in (c") > pc.field(""), ["a b) in (c", ""]),
        (pc.field("s", "x") > pc.field("a"), ["a", "s"]),
        (pc.field("t").isin(["No match for FieldRef.Name(a) in "]), ["t"]),
    ],
)
def test_columns_of_any_name_and_parts_of_them_are_found(
    expression: pc.Expression, expected: list[str]
) -> None:
    assert needed(expression, ODD) == expected
