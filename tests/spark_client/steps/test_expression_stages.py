"""Expressions over batches: SQL's nulls, every layout, errors that name the stage and the column."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client.arrow import Declared
from spark_client.steps import FilterStage, SelectStage, run

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("x", pa.float64())])),
    ]
)


def batch(rows: int, start: int = 0) -> Any:
    numbers = range(start, start + rows)
    return pa.RecordBatch.from_pylist(
        [
            {
                "id": None if number % 5 == 0 else number,
                "price": Decimal(number) / 4,
                "tags": None if number % 3 == 0 else ["a"] * (number % 4),
                "at": {"x": number / 2},
            }
            for number in numbers
        ],
        SCHEMA,
    )


def rows(batches: Any) -> list[Any]:
    return [row for found in batches for row in found.to_pylist()]


def test_a_filter_keeps_the_rows_for_which_the_expression_is_true_and_drops_nulls() -> None:
    stage = FilterStage(pc.field("id") > 7, Declared("stage 1 (filter)", SCHEMA))
    given = [batch(10), batch(0), batch(10, 10)]
    expected = [row for each in given for row in each.to_pylist() if row["id"] is not None and row["id"] > 7]
    found = list(run([pickle.loads(pickle.dumps(stage))], iter(given)))
    assert rows(found) == expected
    assert all(each.num_rows and each.schema == SCHEMA for each in found)


def test_a_filter_of_a_large_slice_keeps_every_row_once() -> None:
    whole = pa.concat_batches([batch(4), *[batch(996, 4)] * 100])
    stage = FilterStage(pc.field("price") >= pc.scalar(Decimal("1.00")), Declared("s", SCHEMA))
    found = list(run([stage], iter([whole.slice(3, 90_000)])))
    assert pa.Table.from_batches(found) == pa.Table.from_batches([whole.slice(4, 89_999)])


def test_a_selection_computes_renames_and_keeps_nested_columns() -> None:
    schema = pa.schema(
        [
            ("tags", pa.list_(pa.string())),
            ("double", pa.int64()),
            ("x", pa.float64()),
            ("cost", pa.decimal128(25, 4)),
        ]
    )
    expressions = (
        pc.field("tags"),
        pc.multiply(pc.field("id"), pc.scalar(2)),
        pc.field("at", "x"),
        pc.multiply(pc.field("price"), pc.field("price")),
    )
    stage = SelectStage(expressions, Declared("stage 1 (select)", schema))
    given = pa.concat_batches([batch(1000)] * 70)
    found = list(run([pickle.loads(pickle.dumps(stage))], iter([given, batch(0)])))
    assert all(each.schema == schema for each in found)
    assert rows(found)[:7] == [
        {
            "tags": row["tags"],
            "double": None if row["id"] is None else row["id"] * 2,
            "x": row["at"]["x"],
            "cost": row["price"] ** 2,
        }
        for row in given.slice(0, 7).to_pylist()
    ]
    assert sum(each.num_rows for each in found) == 70_000


def test_a_row_that_arrow_cannot_evaluate_names_the_stage() -> None:
    stage = SelectStage(
        (pc.divide(pc.scalar(1), pc.field("id")),),
        Declared("stage 4 (select x)", pa.schema([("x", pa.int64())])),
    )
    zero = pa.RecordBatch.from_pylist([{"id": 0}], pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidRequest, match=r"stage 4 \(select x\): .*divide by zero"):
        list(run([stage], iter([zero])))


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    stage = FilterStage(pc.field("ID") > 1, Declared("stage 2 (filter)", SCHEMA))
    with pytest.raises(
        InvalidRequest, match="no column is named exactly 'ID'; the columns are 'id', 'price'"
    ):
        list(run([stage], iter([batch(1)])))


def test_unaligned_values_of_a_batch_are_not_written_of_in_an_executors_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = pa.py_buffer(bytes(64 * 8 + 4))[4:]
    assert data.address % 8
    column = pa.Array.from_buffers(pa.int64(), 64, [None, data])
    given = pa.record_batch([column], names=["x"])
    stage = FilterStage(pc.field("x") == 0, Declared("here", given.schema))
    assert sum(each.num_rows for each in run([stage], iter([given]))) == 64
    assert capfd.readouterr().err == ""
