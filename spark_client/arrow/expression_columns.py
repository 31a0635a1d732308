"""The columns that an expression of ``pyarrow.compute`` is of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .expression_parts import ColumnField, parts_of


def needed(expression: Any, schema: pa.Schema) -> list[str]:
    """The columns that an expression, which fits the schema, is of, in the schema's order.

    Of an expression that tells no parts, columns are left out, half of them at a time, until pyarrow misses one.
    """
    parts = parts_of(expression)
    if parts is None:
        return _find_needed(expression, schema, list(schema.names))
    columns = {part.name for part in parts if isinstance(part, ColumnField)}
    return [name for name in schema.names if name in columns]


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
