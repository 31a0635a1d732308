"""The parts of which an expression of ``pyarrow.compute`` is made: calls, columns and values; the columns that it is
of, and a guess of the rows that it keeps.

pyarrow shows an expression only as text, in which a column's name may look like anything. What it pickles is an IPC
file, whose schema's metadata lists the parts in order: ``call`` and ``end`` around the arguments of a function,
``literal`` and ``options`` with the number of a column of the file, ``field_ref`` with a column's name, and
``nested_field_ref`` with the number of names that follow, for a field inside of the first one.

The guesses of :func:`kept_share` are those of System R for columns of which nothing is known (Selinger et al., Access
Path Selection in a Relational Database Management System, 1979): a tenth for ``==``, a third for any other condition;
of conditions that are joined by "and" the product, of those joined by "or" the sum. A negation keeps what the condition
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import types

from flight_server.protocol import ipc_framing

T = TypeVar("T")


@dataclass(frozen=True)
class ColumnField:
    """A column of the rows, or a field inside of it."""

    name: str


@dataclass(frozen=True)
class Value:
    """A constant, as Arrow's scalar."""

    scalar: Any


@dataclass(frozen=True)
class FunctionCall:
    """A function of so many arguments, which are before it."""

    function: str
    arguments: int


Part = ColumnField | Value | FunctionCall


def parts_of(expression: Any) -> list[Part] | None:
    """The expression's parts, each call after its arguments; None if pyarrow cannot pickle it, as one with the place of
    a column instead of its name, or pickles it in another form.
    """
    try:
        _, (pickled,) = expression.__reduce__()
        file = pa.ipc.open_file(pickled)
        header = ipc_framing.schema_header(file.schema.serialize().to_pybytes())
        return _parts(ipc_framing.schema_metadata(header), file.get_batch(0).columns)
    except (pa.ArrowException, ValueError, TypeError, LookupError):
        return None


def folded(
    parts: Sequence[Part], of_leaf: Callable[[ColumnField | Value], T], of_call: Callable[[str, list[T]], T]
) -> T:
    """What ``of_call`` makes of the outermost function and of what it has made of its arguments. An expression may have
    more levels than Python's stack.
    """
    results: list[T] = []
    for part in parts:
        if isinstance(part, FunctionCall):
            first = len(results) - part.arguments
            results[first:] = [of_call(part.function, results[first:])]
        else:
            results.append(of_leaf(part))
    (result,) = results
    return result


def _parts(listed: Sequence[tuple[bytes, bytes]], values: Sequence[Any]) -> list[Part]:
    parts: list[Part] = []
    depth, starts = 0, list[int]()  # how many results there are, and were where each open call began
    words = iter(listed)
    for key, word in words:
        match key:
            case b"call":
                starts.append(depth)
                continue
            case b"options":
                continue
            case b"end":
                start = starts.pop()
                parts.append(FunctionCall(word.decode(), depth - start))
                depth = start
            case b"field_ref":
                parts.append(ColumnField(word.decode()))
            case b"nested_field_ref":
                names = [name for _, name in islice(words, int(word))]
                parts.append(ColumnField(names[0].decode()))
            case b"literal":
                parts.append(Value(values[int(word)][0]))
            case _:
                raise ValueError(f"{key!r} is no part of an expression")
        depth += 1
    return parts


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
