"""Types of files become the ones that Spark's own readers give."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    FloatType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from flight_server.protocol.errors import InvalidRequest
from spark_client.scan.holdable import parquet_schema, struct_of


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.uint8(), ShortType()),
        (pa.uint32(), LongType()),
        (pa.uint64(), DecimalType(20, 0)),
        (pa.float16(), FloatType()),
        (pa.date64(), DateType()),
        (pa.timestamp("ns"), TimestampNTZType()),
        (pa.timestamp("s", "Asia/Tokyo"), TimestampType()),
        (pa.dictionary(pa.int8(), pa.string_view()), StringType()),
        (pa.run_end_encoded(pa.int32(), pa.large_string()), StringType()),
        (pa.list_(pa.field("item", pa.uint8(), nullable=False), 3), ArrayType(ShortType())),
        (pa.large_list_view(pa.string()), ArrayType(StringType())),
        (pa.map_(pa.string(), pa.uint32()), MapType(StringType(), LongType())),
        (pa.struct([pa.field("a", pa.uint8(), nullable=False)]), StructType().add("a", ShortType())),
    ],
    ids=str,
)
def test_a_type_becomes_sparks(kind: pa.DataType, expected: DataType) -> None:
    struct = struct_of(pa.schema([pa.field("x", kind, nullable=False)]), "the scan")
    assert struct["x"].nullable
    assert struct["x"].dataType == expected


def test_a_type_that_spark_has_not_is_named() -> None:
    with pytest.raises(
        InvalidRequest, match=r"no type for column 'x' of type month_day_nano_interval; leave it"
    ):
        struct_of(pa.schema([("x", pa.month_day_nano_interval())]), "the scan")


def test_int96_is_an_instant_at_any_depth_and_other_local_timestamps_stay(tmp_path: Path) -> None:
    local = pa.timestamp("us")
    table = pa.table({"t": pa.array([1], local), "l": pa.array([[1]], pa.list_(local))})
    for old, expected in ((True, pa.timestamp("us", "UTC")), (False, local)):
        pq.write_table(table, tmp_path / "x.parquet", use_deprecated_int96_timestamps=old)
        file = pq.ParquetFile(tmp_path / "x.parquet")
        schema = parquet_schema(file.schema_arrow, file.metadata)
        assert schema.field("t").type == expected
        assert schema.field("l").type.value_type == expected
        file.close()
