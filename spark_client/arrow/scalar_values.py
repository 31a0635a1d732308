"""Values of a column as Python's, also where Python or its time zones do not have them.

Python's dates end at 9999 and begin at 1, and its zones have no names such as ``GMT+2``, which Spark's sessions may
have. :func:`python_values` gives a value that Python does not have as Arrow's scalar, whose own text raises in some
types: users get :class:`ArrowValue`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

_OFFSET = re.compile(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


def known_zone(zone: str) -> str:
    """The zone under a name that Arrow knows: Java's fixed offsets, such as ``GMT+2``, as ``+02:00``."""
    offset = _OFFSET.fullmatch(zone)
    if offset is None:
        return {"Z": "UTC", "UT": "UTC"}.get(zone, zone)
    sign, hours, minutes = offset.groups()
    return f"{sign}{int(hours):02}:{minutes or '00'}"


@dataclass(frozen=True, slots=True, repr=False)
class ArrowValue:
    """A value that Python does not have: Arrow's ``scalar``, with a text in every type."""

    scalar: pa.Scalar

    def __repr__(self) -> str:
        text = " ".join(pa.array([self.scalar], self.scalar.type).to_string().split())
        return f"<{self.scalar.type}: {text.removeprefix('[').removesuffix(']').strip()}>"


def python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """One value for each row; where one of them is not Python's, all are Arrow's scalars, but for nulls."""
    if types.is_timestamp(array.type) and array.type.tz:
        known = array.cast(pa.timestamp(array.type.unit, known_zone(array.type.tz)))
        # The same instants: Python's zones lack Java's short names.
        utc = array.cast(pa.timestamp(array.type.unit, "UTC"))
        tried = [known, utc]
    else:
        tried = [array]
    for column in tried:
        try:
            plain: list[Any] = column.to_pylist()
        except (ValueError, OverflowError, LookupError):  # the last: pytz's and zoneinfo's unknown zones
            continue
        return plain
    return [scalar if scalar.is_valid else None for scalar in array]


def printable_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As :func:`python_values`, with an :class:`ArrowValue` of each of Arrow's scalars."""
    return [ArrowValue(each) if isinstance(each, pa.Scalar) else each for each in python_values(array)]


def shown(value: Any) -> str:
    """The value's text."""
    return repr(ArrowValue(value) if isinstance(value, pa.Scalar) else value)
