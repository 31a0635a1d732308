"""The Arrow types that Spark holds for files' types, as Spark itself reads them.

A column for which Spark's footer has another type is refused (``spark_footers``). Unsigned integers become the next
larger signed type (``uint64``: decimal), ``float16`` float, ``date64`` date, a time of day ``time``. Dictionaries,
run-end encodings and views become plain. Everything may be null, as in Spark's own readers. A timestamp without a zone
is ``timestamp_ntz``; Parquet's old INT96, which Spark writes by default, is an instant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import inner_types
from spark_client.pyspark_parts import from_arrow_type

from .spark_footers import in_json

_SIMPLE = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
}


def struct_of(
    schema: pa.Schema,
    where: str,
    remedy: str = "leave it out with columns=",
    footer: Mapping[str, Any] = MappingProxyType({}),
) -> StructType:
    """Spark's schema for a file's or a table's; ``footer`` has the types in Spark's, ``remedy`` is for the error.
    Raises InvalidRequest: Spark has no type for a column, or has another one for it than Arrow can give.
    """
    fields = []
    for field in schema:
        try:
            kind = from_arrow_type(held(field.type), prefer_timestamp_ntz=True)
        except PySparkTypeError as error:
            raise InvalidRequest(
                f"{where}: Spark has no type for column {field.name!r} of type {field.type}; {remedy}",
                column=field.name,
            ) from error
        stored_type = footer.get(field.name)
        if stored_type is not None and stored_type != in_json(kind):
            raise InvalidRequest(
                f"{where}: Spark reads column {field.name!r} as "
                f"{stored_type if isinstance(stored_type, str) else json.dumps(stored_type)}, "
                f"and Arrow as {field.type}, which is not the same; {remedy}, or read it by spark.read",
                column=field.name,
            )
        fields.append(StructField(field.name, kind))
    return StructType(fields)


def parquet_schema(schema: pa.Schema, metadata: Any) -> pa.Schema:
    """A Parquet file's Arrow schema with its INT96 columns as instants, which Arrow takes for local timestamps, and
    those of logical type ENUM, as of Avro's, as text, which Arrow takes for binary.
    """
    columns = [metadata.schema.column(index) for index in range(len(metadata.schema))]
    instants = {each.path.partition(".")[0] for each in columns if each.physical_type == "INT96"}
    texts = {each.path for each in columns if each.logical_type.type == "ENUM"}

    def field(column: pa.Field) -> pa.Field:
        if column.name in texts:
            return column.with_type(pa.string())
        return column.with_type(_map_type(column.type, _with_zone)) if column.name in instants else column

    if instants or texts:
        schema = pa.schema([field(each) for each in schema])
    return schema


def with_integers(schema: pa.Schema, own: Container[str]) -> pa.Schema:
    """A Parquet file's columns of Arrow's type of nulls as integers, which Spark reads them as, but for ``own``, those
    whose types Spark wrote. Parts of a type count, too. Rows are read as nulls, which fit any type.
    """
    fields = [
        field.with_type(_map_type(field.type, lambda kind: pa.int32() if pa.types.is_null(kind) else kind))
        if has_nulls_alone(field.type) and field.name not in own
        else field
        for field in schema
    ]
    return pa.schema(fields)


def has_nulls_alone(kind: pa.DataType) -> bool:
    """Whether it, or a part of it, is the type of nulls."""
    return any(map(pa.types.is_null, inner_types(kind)))


def comparable(schema: pa.Schema) -> pa.Schema:
    """The schema without dictionaries and views of text and bytes, for the filter, which sees plain values: Arrow
    compares views with nothing, and has most functions for neither.
    """
    return pa.schema([field.with_type(_comparable(field.type)) for field in schema])


def _comparable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _comparable(kind.value_type)
    return _SIMPLE[kind] if is_view(kind) else kind


def is_view(kind: pa.DataType) -> bool:
    """Whether it is a view of text or bytes."""
    return kind in (pa.string_view(), pa.binary_view())


def is_text(kind: pa.DataType) -> bool:
    """Whether it is text, of which Arrow counts the bytes with 32 bits."""
    return kind in (pa.string(), pa.string_view())


def _with_zone(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) and kind.tz is None else kind


def held(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark has for a type of a file; every part of it may be null."""
    return _map_type(kind, lambda t: _SIMPLE.get(t, t))


def _map_type(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with its leaves replaced, everything nullable, and lists and encodings plain."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _map_type(kind.storage_type, leaf)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _map_type(kind.value_type, leaf)
    if types.is_map(kind):
        return pa.map_(_map_type(kind.key_type, leaf), _map_type(kind.item_type, leaf))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _map_type(field.type, leaf)) for field in kind])
    if types.is_nested(kind) and kind.num_fields == 1:
        return pa.list_(_map_type(kind.value_type, leaf))
    return leaf(kind)
