"""The parts of which an expression of ``pyarrow.compute`` is made: calls, columns and values; the columns that it is
of, whether a row can make it fail, and a guess of the rows that it keeps.

pyarrow shows an expression only as text, in which a column's name may look like anything. What it pickles is an IPC
file, whose schema's metadata lists the parts in order: ``call`` and ``end`` around the arguments of a function,
``literal`` and ``options`` with the number of a column of the file, ``field_ref`` with a column's name, and
``nested_field_ref`` with the number of ``field_ref`` that follow, for a field inside of the first one. A part of the
list between ``call`` and its ``end`` is an expression, too: so conditions that are joined by "and" are taken apart
(:func:`conjuncts`), and columns get other names (:func:`renamed`); functions keep their options.

The guesses of :func:`kept_share` are those of System R for columns of which nothing is known (Selinger et al., Access
Path Selection in a Relational Database Management System, 1979): a tenth for ``==``, a third for any other condition;
of conditions that are joined by "and" the product, of those joined by "or" the sum. A negation keeps what the condition
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import types

from flight_server.protocol import InvalidRequest, ipc_framing

T = TypeVar("T")


@dataclass(frozen=True)
class ColumnField:
    """A column of the rows, or, if ``nested``, a field inside of it."""

    name: str
    nested: bool = False


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
    """The expression's parts, each call after its arguments; None if pyarrow pickles it in another form than now."""
    return _parts_of(_Same(expression))


@dataclass(frozen=True, eq=False)
class _Same:
    """An expression as a key: it is the same only if it is the same object, as ``==`` makes another expression."""

    expression: Any

    def __hash__(self) -> int:
        return id(self.expression)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.expression is self.expression


@lru_cache(maxsize=64)
def _parts_of(same: _Same) -> list[Part] | None:
    # A plan asks several times for each of its expressions, at 0.2 ms.
    try:
        listed, batch = _pickled(same.expression)
        return _parts(listed, batch.columns)
    except _OTHER_FORMS:
        return None


_OTHER_FORMS = (pa.ArrowException, ValueError, TypeError, LookupError)
Listed = Sequence[tuple[bytes, bytes]]
"""The parts as the metadata of the pickled file list them."""


def _pickled(expression: Any) -> tuple[Listed, pa.RecordBatch]:
    """The list of the parts, and the values to which it refers."""
    _, (pickled,) = expression.__reduce__()
    file = pa.ipc.open_file(pickled)
    header = ipc_framing.schema_header(file.schema.serialize().to_pybytes())
    return list(ipc_framing.schema_metadata(header)), file.get_batch(0)


def _made_of(expression: Any, listed: Listed, batch: pa.RecordBatch) -> Any:
    load, _ = expression.__reduce__()
    # It has one row, also without columns.
    batch = batch.replace_schema_metadata(pa.KeyValueMetadata(listed))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    return load(sink.getvalue())


def conjuncts(expression: Any) -> list[Any]:
    """The conditions that are joined by "and", in order; the expression alone if there is one, or if it tells no parts.
    A row for which the whole is true is one for which each of them is.
    """
    try:
        listed, batch = _pickled(expression)
        starts = _conjunct_starts(listed)
        if len(starts) == 1:
            return [expression]
        return [_made_of(expression, listed[first:last], batch) for first, last in starts]
    except _OTHER_FORMS:
        return [expression]


def _conjunct_starts(listed: Listed) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(listed):
        key, word = listed[at]
        if word == b"and_kleene" and key in (b"call", b"end"):
            at += 1
            continue
        last, depth = at, 0
        while True:
            key, word = listed[last]
            depth += {b"call": 1, b"end": -1}.get(key, 0)
            # A nested field is followed by its names.
            last += 1 + (int(word) if key == b"nested_field_ref" else 0)
            if not depth:
                break
        ranges.append((at, last))
        at = last
    return ranges


def renamed(expression: Any, names: Mapping[str, str]) -> Any:
    """The same expression of columns of other names; None if it tells no parts."""
    if all(name == other for name, other in names.items()):
        return expression
    try:
        listed, batch = _pickled(expression)
        changed = list(listed)
        at = 0
        while at < len(changed):
            key, word = changed[at]
            inner = int(word) - 1 if key == b"nested_field_ref" else 0
            at += key == b"nested_field_ref"
            key, word = changed[at]
            if key == b"field_ref":
                changed[at] = key, names.get(word.decode(), word.decode()).encode()
            at += 1 + inner
        return _made_of(expression, changed, batch)
    except _OTHER_FORMS:
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


def _parts(listed: Listed, values: Sequence[Any]) -> list[Part]:
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
                parts.append(ColumnField(names[0].decode(), nested=True))
            case b"literal":
                parts.append(Value(values[int(word)][0]))
            case _:
                raise ValueError(f"{key!r} is no part of an expression")
        depth += 1
    return parts


def needed(expression: Any, schema: pa.Schema) -> list[str]:
    """The columns that an expression, which fits the schema, is of, in the schema's order; all if it tells no parts."""
    parts = parts_of(expression)
    if parts is None:
        return list(schema.names)
    columns = {part.name for part in parts if isinstance(part, ColumnField)}
    return [name for name in schema.names if name in columns]


def check_named(expression: Any, where: str) -> None:
    """Raise InvalidRequest if the expression has a column by its place: pyarrow sends tasks none."""
    try:
        expression.__reduce__()
    except pa.ArrowNotImplementedError as error:
        raise InvalidRequest(
            f"{where}: {expression} cannot be sent to tasks; write its columns by their names, as in "
            f"pyarrow.compute.field('x') ({error})"
        ) from error


def fits(expression: Any, schema: pa.Schema) -> bool:
    """Whether the expression fits the schema."""
    try:
        schema.empty_table().filter(expression)
    except pa.ArrowException:
        return False
    return True


def is_repeatable(expression: Any) -> bool:
    """Whether equal rows have equal results; False of one that tells no parts."""
    parts = parts_of(expression)
    return parts is not None and not any(
        isinstance(part, FunctionCall) and part.function == "random" for part in parts
    )


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_NEVER_FAILING = (
    "is_valid",
    "is_null",
    "is_nan",
    "is_in",
    "invert",
    "and_kleene",
    "or_kleene",
    "true_unless_null",
)
_OF_TEXTS = ("starts_with", "ends_with", "match_like", "match_substring")


def cannot_fail(condition: Any, schema: pa.Schema) -> bool:
    """Whether a condition over rows of this schema is true, false or null for every row that there can be.

    It is made of columns and constants by comparisons of one kind of value, tests for null, NaN, membership or parts of
    texts, and "and", "or" and "not". Arithmetic may overflow, and so may a cast, also one that Arrow adds where a
    column of ``bigint`` is compared with a float.
    """
    parts = parts_of(condition)

    def of_leaf(leaf: ColumnField | Value) -> str:
        if isinstance(leaf, Value):
            kind = _kind(leaf.scalar.type)
            # Arrow casts it once, before there are rows.
            return _ANY_NUMBER if kind == _EXACT else kind
        return "" if leaf.nested else _kind(schema.field(leaf.name).type)

    return parts is not None and bool(folded(parts, of_leaf, _kind_of_call))


def _kind_of_call(function: str, kinds: list[str]) -> str:
    """The kind of a call's results; empty if it may fail."""
    cannot_fail = all(kinds) and (
        function in _NEVER_FAILING
        or (function in _COMPARISONS and _are_alike({*kinds}))
        or (function in _OF_TEXTS and kinds == ["text"])
    )
    return "bool" if cannot_fail else ""


def _are_alike(kinds: set[str]) -> bool:
    return len(kinds) == 1 or kinds in ({_EXACT, _ANY_NUMBER}, {"float", _ANY_NUMBER})


_EXACT, _ANY_NUMBER = "exact number", "constant number"


def _kind(kind: pa.DataType) -> str:
    """The same text for types whose values Arrow compares without a cast that may fail; empty for nested ones."""
    if types.is_nested(kind) or types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return ""
    if types.is_signed_integer(kind) or types.is_decimal(kind):
        return _EXACT
    if types.is_floating(kind):
        return "float"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_timestamp(kind):
        return f"timestamp[{kind.unit}], {'an instant' if kind.tz else 'local'}"
    return str(kind)


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
