"""Names of folders for columns' values, as Spark writes and reads them: ``name=value``, one folder in the other.

Guarantee: the folder of a value is the one that Spark's ``partitionBy`` gives it, in a session of the same time zone.
So null and the empty text have one folder, and what Spark takes for a number or a date it reads as one, unless the
reader says a schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from flight_server.keys import compute
from spark_client.scan import NULL

_ESCAPED = re.compile(r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]")


def is_named(kind: pa.DataType) -> bool:
    """Whether values of the type name folders: each has one text, from which it is read again."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date(kind)
        or types.is_decimal(kind)
        or types.is_timestamp(kind)
    )


def texts_of(values: Iterable[Any], zone: str) -> Iterator[str | None]:
    """The texts of pyarrow's scalars, instants in the zone; None for null, and for the empty text."""
    for value in values:
        yield None if value is None or not value.is_valid else _text(value, zone) or None


def folder_of(names: Sequence[str], texts: Sequence[str | None]) -> str:
    """The path of the folder; empty without columns."""
    pairs = zip(names, texts, strict=True)
    return "/".join(f"{escaped(name)}={NULL if text is None else escaped(text)}" for name, text in pairs)


def escaped(text: str) -> str:
    """The text with Spark's escapes."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _text(value: Any, zone: str) -> str:
    kind = value.type
    if pa.types.is_decimal(kind):
        return f"{value.as_py():f}"
    if pa.types.is_date(kind):
        return _far(str(value.cast(pa.string())))
    if pa.types.is_timestamp(kind):
        local = compute().local_timestamp(value.cast(pa.timestamp(kind.unit, zone))) if kind.tz else value
        seconds, _, fraction = str(local.cast(pa.string())).partition(".")
        fraction = fraction.rstrip("0")
        return _far(f"{seconds}.{fraction}" if fraction else seconds)
    return str(value.cast(pa.string()))


def _far(text: str) -> str:
    """A day as Spark writes it, after the year 9999 with a sign."""
    return f"+{text}" if re.match(r"\d{5}", text) else text
