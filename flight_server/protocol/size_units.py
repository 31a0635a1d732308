"""Sizes as people write them: bytes, or a number and a unit, as Arrow's and Spark's users know them."""

from __future__ import annotations

import re
from decimal import Decimal

from .errors import InvalidRequest

SIZE_SETTINGS = ("memory_limit", "disk_limit", "segment_size", "max_message", "max_schema")
"""The server's settings that are sizes."""
_SIZE = re.compile(
    r"\s*(?P<number>[0-9]{1,18}(\.[0-9]{1,9})?)\s*(?P<prefix>[kmgtp]?)(?P<unit>ib?|b?)\s*",
    re.IGNORECASE | re.ASCII,
)


def parse_size(value: object) -> int:
    """The bytes that people mean by a number, or a text such as ``1g``, ``64MiB``, ``64Mi`` and ``1.5 GB``.

    A unit is a power of 1024, as Spark's, Java's and Kubernetes' are, but one with a ``B`` and no ``i``, such as
    ``MB``, is a power of 1000.

    Raises ValueError for other forms (text after the unit, bits, true and false), because a misunderstood limit is
    noticed too late.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    parts = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = "" if parts is None else parts["unit"].lower()
    if parts is None or (unit.startswith("i") and not parts["prefix"]):
        shown = repr(value if len(str(value)) < 40 else f"{str(value)[:40]}…")
        raise ValueError(
            f"{shown} is no size: give bytes, or a number and a unit, such as 1g, 64MiB or 1.5GB"
        )
    power = " kmgtp".index(parts["prefix"].lower() or " ")
    return int(Decimal(parts["number"]) * (1000 if unit == "b" else 1024) ** power)


def check_size(name: str, value: object) -> int:
    """The bytes of an argument. Raises InvalidRequest, which has the name: it is no size."""
    try:
        return parse_size(value)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from None
