"""Spark's order of values as a key for Python's ``sorted``: the model that sorted rows are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_client.arrow import SortKey


def place(value: Any) -> tuple[Any, ...]:
    """A value's place among values of its type; a null inside of a value is less than every value."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, 1, 0.0) if math.isnan(value) else (1, 0, value + 0.0)
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(value, dict):
        return (1, tuple(place(field) for field in value.values()))
    if isinstance(value, list):
        return (1, tuple(place(element) for element in value))
    return (1, value)


def ordered(data: pa.Table, keys: Sequence[SortKey]) -> list[int]:
    """The numbers of the rows in order; equal rows in theirs."""
    found = list(range(data.num_rows))
    for key in reversed(keys):
        column = data.column(key.column).to_pylist()
        nulls = [row for row in found if column[row] is None]
        others = sorted(
            (row for row in found if column[row] is not None),
            key=lambda row, column=column: place(column[row]),  # type: ignore[misc]
            reverse=key.descending,
        )
        found = nulls + others if key.nulls_first else others + nulls
    return found
