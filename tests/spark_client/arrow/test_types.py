"""A stage's output has exactly the declared schema, or is an error that names stage, column and remedy."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client.arrow.types import Declared

INSTANT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def declared(*, by_name: bool = False, **fields: Any) -> Declared:
    return Declared("stage 2 (mapInArrow)", pa.schema(list(fields.items())), by_name)


VIEWS = pa.array([[1], [7, 8, 9], None, [2, 3], [], None, [4]], pa.list_view(pa.int32()))


def test_list_views_become_whole_lists_also_slices_of_them_and_in_another_order() -> None:
    large = pa.array(VIEWS.to_pylist(), pa.large_list_view(pa.int32()))
    turned = pa.ListViewArray.from_arrays([3, 0, 1], [2, 1, 0], [1, 2, 3, 4, 5])
    for views in (VIEWS, VIEWS.slice(2, 4), turned, large):
        found = declared(x=pa.list_(pa.int64())).cast(pa.RecordBatch.from_arrays([views], names=["x"]))
        found.validate(full=True)
        assert found["x"].to_pylist() == views.to_pylist()
    table = pa.table({"x": pa.chunked_array([VIEWS.slice(1, 2), VIEWS.slice(3)])})
    assert declared(x=pa.list_(pa.int64())).cast(table)["x"].to_pylist() == VIEWS[1:].to_pylist()


def test_list_views_inside_of_other_types_are_refused() -> None:
    inside = pa.array([{"x": [1]}], pa.struct([("x", pa.list_view(pa.int64()))]))
    with pytest.raises(InvalidRequest, match="does not convert list views inside of other types"):
        declared(s=pa.struct([("x", pa.list_(pa.int64()))])).cast(pa.record_batch({"s": inside}))


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array(["a", None], pa.string_view()), pa.string()),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
        (pa.array([1, None], pa.uint64()), pa.int64()),
        (pa.array([1, None], pa.int32()), pa.int64()),
        (pa.array([decimal.Decimal("1.50")], pa.decimal128(5, 2)), pa.decimal128(10, 2)),
        (
            pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
            pa.list_(pa.field("element", pa.float32())),
        ),
        (pa.array([["a"], None], pa.large_list(pa.large_string())), pa.list_(pa.string())),
        (pa.array([INSTANT], pa.timestamp("ns", "UTC")), pa.timestamp("us", "Europe/Berlin")),
        (pa.array([None, None]), pa.string()),
        (pa.array([{"x": 1}], pa.struct([("x", pa.int32())])), pa.struct([("x", pa.int64())])),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int64())),
        (
            pa.RunEndEncodedArray.from_arrays([2], ["a"], pa.run_end_encoded(pa.int32(), pa.string())),
            pa.string(),
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_other_layouts_of_the_same_values_are_cast(column: Any, type_: Any) -> None:
    batch = declared(c=type_).cast(pa.RecordBatch.from_arrays([column], ["c"]))
    assert batch.schema == pa.schema([("c", type_)])
    assert batch.column(0).to_pylist() == column.to_pylist()


def test_a_decimal_gets_more_digits_without_a_copy() -> None:
    column = pa.array([decimal.Decimal("-1.50"), None, decimal.Decimal("7.00")], pa.decimal128(5, 2))[1:]
    batch = declared(c=pa.decimal128(38, 2)).cast(pa.RecordBatch.from_arrays([column], ["c"]))
    found = batch.column(0)
    found.validate(full=True)
    assert found.to_pylist() == column.to_pylist()
    assert found.buffers()[1].address == column.buffers()[1].address


@pytest.mark.parametrize(
    ("column", "type_", "what"),
    [
        (pa.array(["1"]), pa.int64(), "a text is not made a number"),
        (pa.array([1]), pa.string(), "a number is not made a text"),
        (pa.array([b"x"]), pa.string(), "a binary is not made a text"),
        (pa.array([2**40]), pa.int32(), "without loss"),
        (pa.array([1.5]), pa.int32(), "without loss"),
        (pa.array([INSTANT.replace(tzinfo=None)]), pa.timestamp("us", "UTC"), "assume_timezone"),
        (pa.array([INSTANT]), pa.timestamp("us"), "local_timestamp"),
        (pa.array([{"y": 1}]), pa.struct([("x", pa.int64())]), "its fields are y, declared are x"),
        (pa.array([[["1"]]]), pa.list_(pa.list_(pa.int64())), "a text is not made a number"),
        (
            pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())),
            pa.map_(pa.string(), pa.int64()),
            "a text",
        ),
    ],
)
def test_a_cast_that_would_change_values_is_refused(column: Any, type_: Any, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what) as caught:
        declared(c=type_).cast(pa.RecordBatch.from_arrays([column], ["c"]))
    assert caught.value.message.startswith("stage 2 (mapInArrow): column 'c'")
    assert caught.value.detail == {"stage": "stage 2 (mapInArrow)", "column": "c"}


def test_missing_extra_and_repeated_columns_are_named() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1])] * 3, ["a", "z", "z"])
    with pytest.raises(InvalidRequest, match="missing 'b'; unexpected 'z', 'z'; twice 'z'"):
        declared(a=pa.int64(), b=pa.int64()).cast(batch)


def test_displaced_columns_are_refused_by_position_and_reordered_by_name() -> None:
    batch = pa.RecordBatch.from_pydict({"b": [2], "a": [1]})
    with pytest.raises(
        InvalidRequest, match="column 'b' is out of order: the result has b, a, declared is a, b"
    ):
        declared(a=pa.int64(), b=pa.int64()).cast(batch)
    assert declared(by_name=True, a=pa.int64(), b=pa.int64()).cast(batch).to_pydict() == {"a": [1], "b": [2]}


def test_a_null_in_a_column_declared_not_null_is_refused_whether_cast_or_not() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    contract = Declared("s", schema)
    for type_ in (pa.int64(), pa.int32()):
        with pytest.raises(InvalidRequest, match="column 'a' has nulls but is declared NOT NULL"):
            contract.cast(pa.RecordBatch.from_arrays([pa.array([1, None], type_)], ["a"]))
    lying = pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=schema)
    with pytest.raises(InvalidRequest, match="NOT NULL"):
        contract.cast(lying)


def test_a_batch_of_the_declared_schema_is_passed_on_untouched() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    assert declared(a=pa.int64()).cast(batch) is batch


def test_metadata_becomes_the_declared_one() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), metadata={"k": "v"})])
    batch = Declared("s", schema).cast(pa.RecordBatch.from_pydict({"a": [1]}))
    assert batch.schema.equals(schema, check_metadata=True)


def test_tables_keep_their_chunks() -> None:
    table = pa.table({"a": pa.chunked_array([["x"], ["y"]]).dictionary_encode()})
    assert declared(a=pa.string()).cast(table).column("a").to_pylist() == ["x", "y"]
