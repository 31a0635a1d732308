"""Sizes as people write them: bytes, or a number and a unit, ``64MiB``, ``1.5 GB``.

Other forms (text after the unit, bits, true and false) are refused, because a misunderstood limit is noticed too late.
"""

from __future__ import annotations

import re
from decimal import Decimal

_SIZE = re.compile(
    r"\s*(?P<number>[0-9]{1,18}(\.[0-9]{1,9})?)\s*((?P<prefix>[kmgtp]?)(?P<binary>i?)b)?\s*", re.IGNORECASE
)


def parse_size(value: object) -> int:
    """The bytes that a text or a number means. Raises ValueError: it means none."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None or (found["binary"] and not found["prefix"]):
        shown = repr(value if len(str(value)) < 40 else f"{str(value)[:40]}…")
        raise ValueError(f"{shown} is no size: give bytes, or a number and a unit, such as 64MiB or 1.5GB")
    power = " kmgtp".index((found["prefix"] or " ").lower())
    return int(Decimal(found["number"]) * (1024 if found["binary"] else 1000) ** power)
