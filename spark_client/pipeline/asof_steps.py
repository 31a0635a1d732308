"""The times of an as-of join, as a user writes them."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from flight_server.protocol import InvalidRequest
from spark_client.joining import AsOf, Direction

from .pairing import JoinKey

_DIRECTIONS: dict[str, Direction] = {"backward": "backward", "forward": "forward", "nearest": "nearest"}
_MOST = (1 << 64) - 1
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DECIMAL_DIGITS = 18


def time_columns(as_of: Any, where: str) -> tuple[str, str]:
    """The names of the left's and the right's times. Raises InvalidRequest."""
    if isinstance(as_of, str):
        return as_of, as_of
    if isinstance(as_of, tuple | list) and len(as_of) == 2 and all(isinstance(name, str) for name in as_of):
        return as_of[0], as_of[1]
    raise InvalidRequest(
        f"{where}: how='asof' needs as_of=, the column of the times, or a pair of a left and a right one, as in "
        f"as_of=('ordered', 'quoted'), not {as_of!r}"
    )


def as_of_times(key: JoinKey, direction: str, tolerance: Any, *, exact: bool, where: str) -> AsOf:
    """What an as-of join compares.

    Raises:
        InvalidRequest: the columns are neither times nor numbers, no such direction, or a tolerance that is negative
            or no distance of such times.
    """
    chosen = _DIRECTIONS.get(direction)
    if chosen is None:
        raise InvalidRequest(f"{where}: direction is one of {', '.join(_DIRECTIONS)}, not {direction!r}")
    kind = key.form.compared
    if types.is_decimal(kind) and kind.precision > _DECIMAL_DIGITS:
        raise InvalidRequest(
            f"{where}: {key.left!r} and {key.right!r} are compared as {kind}; cast them to a decimal of at most "
            f"{_DECIMAL_DIGITS} digits, or to double",
            column=key.left,
        )
    if types.is_string(kind) or types.is_binary(kind) or types.is_boolean(kind):
        raise InvalidRequest(
            f"{where}: as_of={key.left!r} is {kind}, and has no distances; cast it to a time or a number",
            column=key.left,
        )
    found = None if tolerance is None else _distance(tolerance, kind, where)
    return AsOf(key.left, key.right, kind, chosen, found, bool(exact))


def _distance(tolerance: Any, kind: pa.DataType, where: str) -> int | float:
    """The tolerance in the units of the type; a part of a unit makes no difference between whole ones."""
    if types.is_temporal(kind):
        if not isinstance(tolerance, timedelta):
            raise InvalidRequest(
                f"{where}: the times are {kind}, and tolerance is a datetime.timedelta, not {tolerance!r}"
            )
        microseconds = tolerance // timedelta(microseconds=1)
        per_second = Fraction(1, 86400) if types.is_date32(kind) else Fraction(_PER_SECOND[kind.unit])
        found: int | float = math.floor(microseconds * per_second / 10**6)
        negative = microseconds < 0
    else:
        tolerance = tolerance.item() if isinstance(tolerance, np.generic) else tolerance
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | Decimal):
            raise InvalidRequest(
                f"{where}: the times are {kind}, and tolerance is a number, not {tolerance!r}"
            )
        negative = math.isnan(tolerance) or tolerance < 0
        if negative or types.is_floating(kind) or math.isinf(tolerance):
            found = float(tolerance)
        else:
            scale = kind.scale if types.is_decimal(kind) else 0
            found = math.floor(Fraction(tolerance) * 10**scale)
    if negative:
        raise InvalidRequest(f"{where}: tolerance is a distance, 0 or more, not {tolerance!r}")
    return found if types.is_floating(kind) else int(min(found, _MOST))
