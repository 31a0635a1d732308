"""Spark's schema of a dataset: which types are cast, and how those that Spark cannot hold are refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, VariantType

from flight_server.protocol import InvalidRequest
from spark_client.datasource.spark_schema import SparkSchema, spark_struct
from spark_client.pyspark_parts import arrow_schema_of

# pyarrow 22 makes no array of large strings in a dictionary from a list.
DICTIONARY = pa.DictionaryArray.from_arrays(
    pa.array([0, None], pa.int8()), pa.array(["a"], pa.large_string())
)
CAST: dict[str, tuple[Any, Any, str]] = {
    "dictionary": (DICTIONARY.type, DICTIONARY, "string"),
    "views": (pa.string_view(), ["a", None], "string"),
    "binary views": (pa.binary_view(), [b"a", None], "binary"),
    "fixed binary": (pa.binary(2), [b"ab", None], "binary"),
    "large lists": (pa.large_list(pa.large_string()), [["a"], None], "array<string>"),
    "vectors": (pa.list_(pa.float32(), 2), [[1.0, 2.0], None], "array<float>"),
    "unsigned": (pa.uint32(), [2**32 - 1, None], "bigint"),
    "half": (pa.float16(), [0.5, None], "float"),
    "seconds": (pa.timestamp("s"), [None], "timestamp_ntz"),
    "zone": (pa.timestamp("ms", "Asia/Tokyo"), [None], "timestamp"),
    "date64": (pa.date64(), [None], "date"),
    "decimal": (pa.decimal256(10, 2), [Decimal("1.50"), None], "decimal(10,2)"),
    "duration": (pa.duration("ms"), [None], "interval day to second"),
    "nested": (
        pa.struct([("d", pa.list_(pa.dictionary(pa.int8(), pa.string()))), ("u", pa.uint8())]),
        [{"d": ["a"], "u": 255}, None],
        "struct<d:array<string>,u:smallint>",
    ),
    "map": (pa.map_(pa.large_string(), pa.uint16()), [[("a", 1)], None], "map<string,int>"),
    "uuid": (pa.uuid(), [None], "binary"),
    "null": (pa.null(), [None], "void"),
}


@pytest.mark.parametrize("name", CAST)
def test_a_batch_gets_exactly_the_schema_that_spark_expects(name: str) -> None:
    type_, values, spark_type = CAST[name]
    column = values if isinstance(values, pa.Array) else pa.array(values, type_)
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    struct = spark_struct(batch.schema, "d")
    assert struct["c"].dataType.simpleString() == spark_type
    cast = SparkSchema.of(batch.schema, "d", struct).cast(batch)
    assert cast.schema.equals(arrow_schema_of(struct, timezone="UTC"), check_metadata=True)
    cast.validate(full=True)
    assert cast.column(0).to_pylist() == batch.column(0).to_pylist()


@pytest.mark.parametrize(
    ("type_", "helps"),
    [
        (pa.uint64(), "to int64, or to decimal128(20, 0)"),
        (pa.list_(pa.uint64()), "to int64, or to decimal128(20, 0)"),
        (pa.decimal256(50, 3), "decimal128(38, 3), or to double"),
        (pa.month_day_nano_interval(), "duration('us')"),
        (pa.dense_union([pa.field("a", pa.int64())]), "a struct with a nullable field for each member"),
        (pa.struct([pa.field("a", pa.int64()), pa.field("a", pa.int64())]), "rename the fields"),
        (pa.list_view(pa.int64()), "put it as a list"),
    ],
)
def test_a_type_that_spark_cannot_hold_is_named_with_what_helps(type_: Any, helps: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        spark_struct(pa.schema([("ok", pa.int64()), ("odd", type_)]), "d")
    assert "dataset 'd': Spark has no type for column 'odd'" in str(refused.value)
    assert helps in str(refused.value)
    assert spark_struct(pa.schema([("ok", pa.int64()), ("odd", type_)]), "d", ["ok"]).names == ["ok"]


def test_a_value_that_would_lose_digits_is_an_error() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.timestamp("ns"))], names=["t"])
    schema = SparkSchema.of(batch.schema, "d", spark_struct(batch.schema, "d"))
    with pytest.raises(InvalidRequest, match=r"column 't' .* without loss"):
        schema.cast(batch)


def test_a_variant_stays_one_and_columns_may_be_not_null() -> None:
    variant = arrow_schema_of(StructType().add("v", VariantType(), False), timezone="UTC")
    struct = spark_struct(variant, "d")
    assert isinstance(struct["v"].dataType, VariantType)
    assert not struct["v"].nullable


def test_columns_that_are_missing_or_there_twice_are_named() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("b", pa.int64())])
    with pytest.raises(InvalidRequest, match="no column 'z'; it has 'a', 'b', 'b'"):
        spark_struct(schema, "d", ["z"])
    with pytest.raises(InvalidRequest, match="2 columns 'b'"):
        spark_struct(schema, "d")
    with pytest.raises(InvalidRequest, match="has no columns"):
        spark_struct(pa.schema([]), "d")


def test_a_schema_that_does_not_fit_the_dataset_is_refused_on_the_driver() -> None:
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(InvalidRequest, match="column 'a' is int64, declared is string"):
        SparkSchema.of(schema, "d", StructType().add("a", "string"))
