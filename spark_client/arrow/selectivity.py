"""Guesses which part of the rows a filter keeps, without a look at them.

The guesses are those of System R for columns of which nothing is known (Selinger et al., Access Path Selection in a
Relational Database Management System, 1979): a tenth for ``==``, a third for any other condition; of conditions that
are joined by "and" the product, of those joined by "or" the sum. A negation keeps what the condition does not.
"""

from __future__ import annotations

from typing import Any

from pyarrow import types

from .expression_parts import ColumnField, Value, folded, parts_of

EQUAL = 0.1
OTHER = 1 / 3


def kept_share(expression: Any) -> float:
    """The part of the rows, above 0 and at most 1; of no filter (None), and of one that tells no parts, all."""
    parts = None if expression is None else parts_of(expression)
    return 1.0 if parts is None else min(1.0, max(1e-6, folded(parts, _of_leaf, _of_call)))


def _of_leaf(leaf: ColumnField | Value) -> float:
    # Of a boolean only: Python has not each time, nor each zone.
    is_true = isinstance(leaf, Value) and types.is_boolean(leaf.scalar.type) and leaf.scalar.as_py() is True
    return 1.0 if is_true else OTHER


def _of_call(function: str, kept: list[float]) -> float:
    match function, kept:
        case "invert", [one]:
            return 1.0 - one
        case "and_kleene" | "and", [one, other]:
            return one * other
        case "or_kleene" | "or", [one, other]:
            return one + other - one * other
        case "is_valid", _:
            return 1.0
        case "equal", _:
            return EQUAL
        case "not_equal", _:
            return 1.0 - EQUAL
    return OTHER
