"""What Parquet files of Spark say of themselves in their footers, and pyarrow does not look at.

Types
    A schema in JSON, by which Spark's own reader goes. So a column whose type there is another one than Arrow's, such
    as an interval, a vector or a text with a collation, is refused (``holdable``), and not read as what it is stored
    as.

Old dates
    An old Spark's calendar is Julian before 1582. Spark converts such dates when it reads them; pyarrow does not. So
    such a value is an error here. Later dates, and instants since 1900, are the same in both calendars.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from flight_server.keys import compute
from flight_server.protocol import InvalidRequest

_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SAYS_NO_TYPE = ("containsNull", "metadata", "nullable", "valueContainsNull")


def footer_types(metadata: Any) -> dict[str, Any]:
    """By a file's ``FileMetaData``, the type of each column in JSON; none if Spark did not write it."""
    try:
        return _types((metadata.metadata or {})[_SCHEMA])
    except (KeyError, TypeError, ValueError):
        return {}


def footer_of(struct: StructType) -> dict[bytes, bytes]:
    """The metadata by which Spark reads a file's columns as those of ``struct``."""
    return {_SCHEMA: struct.json().encode()}


def in_json(kind: DataType) -> Any:
    """The type as :func:`footer_types` has it."""
    return _types(StructType([StructField("x", kind)]).json())["x"]


def _types(text: bytes | str) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in json.loads(text, object_hook=_type_alone)["fields"]}


def _type_alone(value: dict[str, Any]) -> dict[str, Any]:
    collations = (value.get("metadata") or {}).get("__COLLATIONS")
    kept = {name: each for name, each in value.items() if name not in _SAYS_NO_TYPE}
    return {**kept, "type": {"type": kept["type"], "collations": collations}} if collations else kept


_VERSION = b"org.apache.spark.version"
# The kind of values, the version since which Spark writes today's calendar, and the key that says that it did not.
_DATES = ((3, 0), b"org.apache.spark.legacyDateTime")
_INT96 = ((3, 1), b"org.apache.spark.legacyINT96")
_FIRST_DAY = -141_427  # 1582-10-15
_FIRST_MICROSECOND = -2_208_988_800_000_000  # 1900-01-01


def is_legacy(metadata: Any) -> bool:
    """Whether a Parquet file may have dates of that calendar, by its ``FileMetaData``."""
    texts: Mapping[bytes, bytes] = metadata.metadata or {}
    if _VERSION not in texts:
        return False
    version = tuple(int(part) for part in texts[_VERSION].split(b".")[:2] if part.isdigit())
    # Int96 counts with the others: which columns it was is not worth telling apart.
    return any(version < since or key in texts for since, key in (_DATES, _INT96))


def check_dates(batch: Any, path: str) -> None:
    """Raise InvalidRequest if a column of the batch, of a file of that calendar, has a date that is different in it."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if any(map(_is_old, _leaves(column))):
            raise InvalidRequest(
                f"{path}: column {name!r} has dates before 1582, or instants before 1900, in a calendar that only "
                "Spark's own reader converts: read it by spark.read, or leave the column out with columns=",
                column=name,
                file=path,
            )


def _leaves(column: Any) -> list[Any]:
    kind = column.type
    if pa.types.is_struct(kind):
        return [leaf for each in column.flatten() for leaf in _leaves(each)]
    if pa.types.is_map(kind):
        return [*_leaves(column.keys), *_leaves(column.items)]
    return _leaves(column.flatten()) if pa.types.is_list(kind) or pa.types.is_large_list(kind) else [column]


def _is_old(column: Any) -> bool:
    is_date = pa.types.is_date32(column.type)
    if not is_date and not (pa.types.is_timestamp(column.type) and column.type.tz is not None):
        return False
    least = compute().min(column)
    if not least.is_valid:
        return False
    if is_date:
        return bool(least.value < _FIRST_DAY)
    return bool(least.cast(pa.timestamp("us", "UTC"), safe=False).value < _FIRST_MICROSECOND)
