"""The columns that an expression of ``pyarrow.compute`` is of, which pyarrow does not tell."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def needed(expression: Any, schema: pa.Schema) -> list[str]:
    """The columns that an expression, which fits the schema, is of, in the schema's order.

    Columns are left out, half of them at a time, until pyarrow misses one.
    """
    return _find_needed(expression, schema, list(schema.names))


def _find_needed(expression: Any, schema: pa.Schema, names: list[str]) -> list[str]:
    left_out = set(names)
    rest = pa.schema([field for field in schema if field.name not in left_out])
    if not names or fits(expression, rest):
        return []
    if len(names) == 1:
        return names
    half = len(names) // 2
    return _find_needed(expression, schema, names[:half]) + _find_needed(expression, schema, names[half:])


def fits(expression: Any, schema: pa.Schema) -> bool:
    """Whether the expression fits the schema."""
    try:
        schema.empty_table().filter(expression)
    except pa.ArrowException:
        return False
    return True
