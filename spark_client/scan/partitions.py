"""The columns that folders ``name=value`` give (hive partitions), with the types that Spark finds in their values.

``int`` or ``bigint``, ``date`` (``2024-05-31``) and ``double`` (``1.5``) where all values are such, else text; a
column without any value is text, too. Unlike Spark, values with a time of day and numbers beyond 64 bits stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def partition_schema(base: str, paths: Iterable[str]) -> pa.Schema:
    """The columns of the folders between ``base`` and the files, in the order in which they are met."""
    values: dict[str, set[str]] = {}
    for folder in dict.fromkeys(path.removeprefix(base).rpartition("/")[0] for path in paths):
        for part in folder.split("/"):
            name, found, value = part.partition("=")
            if found and name:
                values.setdefault(unquote(name), set()).add(unquote(value))
    return pa.schema([(name, _kind(found - {NULL})) for name, found in values.items()])


def with_partitions(schema: pa.Schema, partitions: pa.Schema) -> pa.Schema:
    """A file's schema and its folders' columns, which replace those of the same name, as in Spark."""
    fields = [partitions.field(field.name) if field.name in partitions.names else field for field in schema]
    return pa.schema([*fields, *(field for field in partitions if field.name not in schema.names)])


def _kind(values: set[str]) -> Any:
    if values and all(map(_INTEGER.fullmatch, values)):
        largest = max(max(int(value), -1 - int(value)) for value in values)
        return pa.int32() if largest < 1 << 31 else pa.int64() if largest < 1 << 63 else pa.string()
    if values and all(map(_DECIMAL.fullmatch, values)):
        return pa.float64()
    if values and all(map(_is_date, values)):
        return pa.date32()
    return pa.string()


def _is_date(value: str) -> bool:
    try:
        return _DATE.fullmatch(value) is not None and date.fromisoformat(value) is not None
    except ValueError:
        return False
