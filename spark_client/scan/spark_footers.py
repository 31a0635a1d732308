"""What Spark's footer says of the types of a Parquet file's columns, a schema in JSON.

Spark's own reader goes by it. So a column whose type there is another one than Arrow's, such as an interval, a vector
or a text with a collation, is refused (``holdable``), and not read as what it is stored as.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import DataType, StructField, StructType

_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SAYS_NO_TYPE = ("containsNull", "metadata", "nullable", "valueContainsNull")


def footer_types(metadata: Any) -> dict[str, Any]:
    """By a file's ``FileMetaData``, the type of each column in JSON; none if Spark did not write it."""
    try:
        return _types((metadata.metadata or {})[_SCHEMA])
    except (KeyError, TypeError, ValueError):
        return {}


def in_json(kind: DataType) -> Any:
    """The type as :func:`footer_types` has it."""
    return _types(StructType([StructField("x", kind)]).json())["x"]


def _types(text: bytes | str) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in json.loads(text, object_hook=_type_alone)["fields"]}


def _type_alone(value: dict[str, Any]) -> dict[str, Any]:
    collations = (value.get("metadata") or {}).get("__COLLATIONS")
    kept = {name: each for name, each in value.items() if name not in _SAYS_NO_TYPE}
    return {**kept, "type": {"type": kept["type"], "collations": collations}} if collations else kept
