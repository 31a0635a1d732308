"""The parts of which an expression of ``pyarrow.compute`` is made: calls, columns and values.

pyarrow shows an expression only as text, in which a column's name may look like anything. What it pickles is an IPC
file, whose schema's metadata lists the parts in order: ``call`` and ``end`` around the arguments of a function,
``literal`` and ``options`` with the number of a column of the file, ``field_ref`` with a column's name, and
``nested_field_ref`` with the number of names that follow, for a field inside of the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa

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
