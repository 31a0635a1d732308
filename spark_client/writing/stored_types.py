"""How files of a write look: which columns they have, in which types, and what a footer says for Spark.

Guarantee: Spark reads each column of a file with the type and values that the pipeline has; what Parquet cannot hold so
is refused, by the name of its column, before a task runs. For that each footer has Spark's own schema, by which Spark
reads types that Parquet has not, such as intervals, and texts with a collation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, NullType, StructType, VariantType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import types_within, utc_arrow_schema
from spark_client.scan import footer_of

from .file_stage import FileLayout
from .folders import is_named

CODECS = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "brotli": "brotli",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "zstd": "zstd",
}
"""By PySpark's names pyarrow's."""
_NO_PARQUET = {"geography", "geometry"}


def codec(compression: Any, where: str) -> str:
    """How pyarrow names the compression. Raises InvalidRequest: it has none of this name."""
    try:
        return CODECS[str(compression).lower()]
    except KeyError:
        raise InvalidRequest(
            f"{where}: compression is one of {', '.join(CODECS)}, not {compression!r}"
        ) from None


def layout_of(
    struct: StructType,
    folders: Sequence[str],
    where: str,
    *,
    compression: str,
    zone: str = "UTC",
    keeps_folders: bool = False,
) -> FileLayout:
    """The layout for rows of these columns; ``keeps_folders``: files have the columns of ``folders``, too.

    Raises InvalidRequest: a column has a type that Parquet does not hold, or that names no folder, or no column is left
    for the files.
    """
    schema = utc_arrow_schema(struct)
    stored = [field for field in struct if keeps_folders or field.name not in folders]
    if not stored:
        what = "all columns name folders" if folders else "the pipeline has no columns"
        raise InvalidRequest(f"{where}: {what}, and no column is left for the files; leave one for them")
    for name in folders:
        if not is_named(schema.field(name).type):
            raise InvalidRequest(
                f"{where}: column {name!r} is {struct[name].dataType.simpleString()}, which names no folder; cast it "
                "to string before",
                column=name,
            )
    for field in stored:
        _check(field.name, field.dataType, schema.field(field.name), where)
    fields = [schema.field(field.name) for field in stored]
    declared = Declared(where, pa.schema(fields, metadata=footer_of(StructType(stored))))
    return FileLayout(declared, tuple(folders), codec(compression, where), zone)


def _check(name: str, kind: DataType, field: pa.Field, where: str) -> None:
    from pyarrow import parquet as pq  # noqa: PLC0415 - only a write needs it

    types = [*types_within(kind)]
    refusal = any(
        isinstance(each, NullType | VariantType) or each.typeName() in _NO_PARQUET for each in types
    )
    error: Exception | None = None
    if not refusal:
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except pa.ArrowException as failed:
            refusal, error = True, failed
    if refusal:
        raise InvalidRequest(
            f"{where}: column {name!r} is {kind.simpleString()}, which Parquet does not hold as Spark reads it; drop "
            "it, or cast it before, for example to string",
            column=name,
        ) from error
