"""What a rule may declare over which columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.kinds.changelog.rules import Groups, make_rule
from flight_server.protocol import InvalidRequest, KeepRule

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("word", pa.dictionary(pa.int32(), pa.string())),
        ("list", pa.list_(pa.int8())),
        ("point", pa.struct([("x", pa.int8())])),
        ("half", pa.float16()),
        ("uuid", pa.uuid()),
        ("view", pa.string_view()),
    ]
)


@pytest.mark.parametrize("column", ["list", "point", "half", "uuid", "view"])
@pytest.mark.parametrize("role", ["key", "order_by"])
def test_a_column_that_has_no_order_is_refused(column: str, role: str) -> None:
    spec = KeepRule.parse({"rule": "latest", "key": "id", "order_by": "id"} | {role: column})
    with pytest.raises(InvalidRequest, match=f"keep: .*{column}"):
        make_rule(spec, SCHEMA)


@pytest.mark.parametrize("column", ["id", "word"])
def test_a_number_and_a_text_may_be_key_and_order(column: str) -> None:
    make_rule(KeepRule.parse({"rule": "latest", "key": column, "order_by": f"-{column}"}), SCHEMA)


def closed_by(kind: pa.DataType, value: Any) -> Any:
    schema = pa.schema([("id", pa.int32()), ("column", kind)])
    spec = {"rule": "until_closed", "key": "id", "closed_by": {"column": value}}
    return make_rule(KeepRule.parse(spec | {"keep": {"rule": "latest", "order_by": "id"}}), schema), schema


FITTING: list[tuple[pa.DataType, Any, Any]] = [
    (pa.string(), "x", "x"),
    (pa.large_string(), "x", "x"),
    (pa.binary(), "x", b"x"),
    (pa.bool_(), True, True),
    (pa.uint8(), 255, 255),
    (pa.int64(), 2.0, 2),
    (pa.float32(), 0.1, 0.1),
    (pa.float64(), 3, 3.0),
    (pa.decimal128(10, 2), 5, 5),
    (pa.date32(), "2026-03-02", date(2026, 3, 2)),
    (pa.timestamp("ms", "UTC"), "2026-03-02T00:00:00Z", datetime(2026, 3, 2, tzinfo=UTC)),
]


@pytest.mark.parametrize(("kind", "value", "in_column"), FITTING, ids=str)
def test_a_value_is_found_in_a_column_of_its_type(kind: pa.DataType, value: Any, in_column: Any) -> None:
    rule, schema = closed_by(kind, value)
    column = pa.array([None, in_column], kind)
    rows = pa.RecordBatch.from_arrays([pa.array([1, 1], pa.int32()), column], schema=schema)
    assert rule.kept(Groups(rows, np.array([0]), np.array([1, 1]))).counts.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), 300),
        (pa.int8(), 1.5),
        (pa.int8(), "1"),
        (pa.int8(), True),
        (pa.int64(), 2**70),
        (pa.bool_(), 1),
        (pa.string(), 1),
        (pa.decimal128(10, 2), 1.555),
        (pa.decimal128(4, 2), 1000),
        (pa.date32(), "yesterday"),
        (pa.date32(), 1),
        (pa.float16(), 1.0),
        (pa.list_(pa.int8()), 1),
    ],
    ids=str,
)
def test_a_value_that_no_row_can_have_is_refused(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"keep: .* in 'closed_by' cannot be in the column 'column'"):
        closed_by(kind, value)
