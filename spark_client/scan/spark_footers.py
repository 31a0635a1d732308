"""Spark's own types of a Parquet file's columns in its footer, a schema in JSON, where Arrow's types do not show them.

Spark's own reader goes by them, so collations, intervals, user-defined types and metadata of columns are as it wrote
them.

Of user-defined types only PySpark's own are made: the name of any other comes from a file, and making it would import
or unpickle a name of the file's. Those are read as the types that they consist of.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StructType,
    TimestampNTZType,
    TimeType,
    UserDefinedType,
)

_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_TYPE = b"spark.sql.catalyst.type"
_INSTANT = pa.timestamp("us", "UTC")


def said_by_parquet(metadata: Any) -> StructType | None:
    """By its ``FileMetaData``; None if Spark did not write it, or its types cannot be read: then Spark, too, goes by
    the columns.
    """
    text = (metadata.metadata or {}).get(_SCHEMA)
    return None if text is None else _parse(text)


@lru_cache(maxsize=16)
def _parse(text: bytes) -> StructType | None:
    try:
        found = StructType.fromJson(json.loads(text, object_hook=_plain))
    except Exception:  # noqa: BLE001 - any text may stand there, and PySpark's parser raises what it comes across
        return None
    return found.toNullable()


def _plain(value: dict[str, Any]) -> Any:
    own = str(value.get("pyClass")).startswith("pyspark.") and "serializedClass" not in value
    return value["sqlType"] if value.get("type") == "udt" and "sqlType" in value and not own else value


def as_said(kind: pa.DataType, said: DataType) -> pa.DataType:
    """The Arrow type of the values that a file has as ``kind``, by Spark's type; of a part that the two do not have in
    common ``kind``'s own.
    """
    types = pa.types
    if isinstance(said, UserDefinedType):
        return as_said(kind, said.sqlType())
    if isinstance(said, StructType) and types.is_struct(kind):
        parts = {field.name: field.dataType for field in said}
        return pa.struct([each.with_type(as_said(each.type, parts.get(each.name, said))) for each in kind])
    if isinstance(said, ArrayType) and types.is_list(kind):
        field = kind.value_field
        return pa.list_(field.with_type(as_said(field.type, said.elementType)))
    if isinstance(said, MapType) and types.is_map(kind):
        return pa.map_(as_said(kind.key_type, said.keyType), as_said(kind.item_type, said.valueType))
    if not types.is_int64(kind):
        return kind
    if isinstance(said, DayTimeIntervalType):
        return pa.duration("us")
    if isinstance(said, TimestampNTZType):
        return pa.timestamp("us")
    return pa.time64("ns") if isinstance(said, TimeType) else kind
