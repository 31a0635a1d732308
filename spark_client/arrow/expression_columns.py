"""The columns that an expression of ``pyarrow.compute`` is of, which pyarrow does not tell."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

_MISSING = re.compile(r"No match for FieldRef\.Name\((.*)\) in ")
_BY_PLACE = "FieldPath("


def needed(expression: Any, schema: pa.Schema) -> list[str]:
    """The columns that an expression, which fits the schema, is of, in the schema's order.

    pyarrow's error says which column it misses first, if it was given by its name alone. Of other expressions columns
    are left out, half of them at a time, until pyarrow misses one.
    """
    found = None if _BY_PLACE in str(expression) else _find_named(expression, schema)
    return _find_needed(expression, schema, list(schema.names)) if found is None else found


def _find_named(expression: Any, schema: pa.Schema) -> list[str] | None:
    """The columns, by as many trials as there are; None if an error names none."""
    found: set[str] = set()
    while True:
        some = pa.schema([field for field in schema if field.name in found])
        try:
            some.empty_table().filter(expression)
        except pa.ArrowException as error:
            missing = _MISSING.match(str(error))
            if missing is None or missing[1] in found or missing[1] not in schema.names:
                return None
            found.add(missing[1])
        else:
            return list(some.names)


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
