"""The Arrow types that Spark holds for what files have, as Spark itself reads them.

Unsigned integers become the next larger signed type (``uint64``: decimal), ``float16`` float, ``date64`` date, a time
of day ``time``. Dictionaries, run-end encodings and views become plain. Everything may be null, as in Spark's own
readers. A timestamp without a zone is ``timestamp_ntz``; Parquet's old INT96, which Spark writes by default, is an
instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.pyspark_parts import from_arrow_type

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


def struct_of(schema: pa.Schema, where: str, remedy: str = "leave it out with columns=") -> StructType:
    """Spark's schema for a file's or a table's; ``remedy`` is for the error.

    Raises:
        InvalidRequest: Spark has no type for a column.
    """
    fields = []
    for field in schema:
        try:
            fields.append(
                StructField(field.name, from_arrow_type(_held(field.type), prefer_timestamp_ntz=True))
            )
        except PySparkTypeError as error:
            raise InvalidRequest(
                f"{where}: Spark has no type for column {field.name!r} of type {field.type}; {remedy}",
                column=field.name,
            ) from error
    return StructType(fields)


def parquet_schema(schema: pa.Schema, metadata: Any) -> pa.Schema:
    """A Parquet file's Arrow schema with its INT96 columns as instants, which Arrow takes for local timestamps, and
    those of logical type ENUM, as of Avro's, as text, which Arrow takes for binary.
    """
    columns = [metadata.schema.column(index) for index in range(len(metadata.schema))]
    instants = {each.path.partition(".")[0] for each in columns if each.physical_type == "INT96"}
    texts = {each.path for each in columns if each.logical_type.type == "ENUM"}
    if not instants and not texts:
        return schema

    def field(given: pa.Field) -> pa.Field:
        if given.name in texts:
            return given.with_type(pa.string())
        return given.with_type(_mapped(given.type, _zoned)) if given.name in instants else given

    return pa.schema([field(each) for each in schema])


def plain_views(schema: pa.Schema) -> pa.Schema:
    """The schema with views of text and bytes as text and bytes: Arrow compares the former with nothing."""
    return pa.schema(
        [field.with_type(_SIMPLE[field.type]) if is_view(field.type) else field for field in schema]
    )


def is_view(kind: pa.DataType) -> bool:
    """Whether it is a view of text or bytes."""
    return kind in (pa.string_view(), pa.binary_view())


def _zoned(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) and kind.tz is None else kind


def _held(kind: pa.DataType) -> pa.DataType:
    return _mapped(kind, lambda t: _SIMPLE.get(t, t))


def _mapped(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with its leaves replaced, everything nullable, and lists and encodings plain."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _mapped(kind.storage_type, leaf)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _mapped(kind.value_type, leaf)
    if types.is_map(kind):
        return pa.map_(_mapped(kind.key_type, leaf), _mapped(kind.item_type, leaf))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _mapped(field.type, leaf)) for field in kind])
    if types.is_nested(kind) and kind.num_fields == 1:
        return pa.list_(_mapped(kind.value_type, leaf))
    return leaf(kind)
