"""Checks each batch of a stage, and casts it to the stage's declared schema.

Guarantee: a batch that :meth:`Declared.cast` returns has exactly the declared Arrow schema (names, order, types,
nullability and metadata), and the same values. A cast that would change, truncate or reinterpret a value is an
:class:`~flight_server.protocol.InvalidRequest` that names stage, column, both types and the remedy.

Cast
    Types of the same kind of value: dictionary, run-end and view encodings to plain ones, large and fixed-size
    layouts to ordinary ones, numbers among each other, times to another unit, zone labels. Every cast is Arrow's safe
    one, which refuses overflow and lost digits, but for decimals that get more digits, whose bits stay. A column of
    type ``null`` becomes nulls of any type.

Refused
    Text for numbers and the reverse, binary for text, a timestamp without a zone for one with a zone (the zone is not
    known), struct fields of other names, and a null in a column declared NOT NULL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.keys import compute
from flight_server.protocol import InvalidRequest

from .widening import decoded, has_more_digits, with_more_digits


@dataclass(frozen=True)
class Declared:
    """An Arrow schema and the stage that declares it. Columns may be in another order only with ``by_name``, as for
    Spark's ``applyInArrow``; ``mapInArrow`` looks at positions, and would not notice two columns of one type
    exchanged.
    """

    stage: str
    schema: pa.Schema
    by_name: bool = False

    def cast(self, batch: Any) -> Any:
        """The batch or table in the declared schema. Raises InvalidRequest, also for a missing, extra or displaced
        column.
        """
        if not batch.schema.equals(self.schema, check_metadata=True):
            columns = [
                self._cast_column(column, field)
                for column, field in zip(self._columns(batch), self.schema, strict=True)
            ]
            batch = type(batch).from_arrays(columns, schema=self.schema)
        for name in self._not_null:
            if batch.column(name).null_count:
                raise self._error(name, "has nulls but is declared NOT NULL; filter them or allow nulls")
        return batch

    @cached_property
    def _not_null(self) -> tuple[str, ...]:
        # Once: of a group of one row the fields took longer than all else here.
        return tuple([field.name for field in self.schema if not field.nullable])

    def _columns(self, batch: Any) -> list[Any]:
        returned, declared = list(batch.schema.names), list(self.schema.names)
        if returned == declared:
            return list(batch.columns)
        counts, expected = Counter(returned), set(declared)
        missing = [name for name in declared if name not in counts]
        extra = [name for name in returned if name not in expected]
        twice = sorted(name for name, count in counts.items() if count > 1)
        if missing or extra or twice:
            parts = [
                f"{what} {', '.join(repr(name) for name in names)}"
                for what, names in (("missing", missing), ("unexpected", extra), ("twice", twice))
                if names
            ]
            raise InvalidRequest(
                f"{self.stage}: the result's columns are not the declared ones: {'; '.join(parts)}; "
                "return exactly the declared columns or change the schema",
                stage=self.stage,
                column=(missing or extra or twice)[0],
            )
        if not self.by_name:
            displaced = next(name for name, other in zip(returned, declared, strict=True) if name != other)
            raise self._error(
                displaced,
                f"is out of order: the result has {', '.join(returned)}, declared is {', '.join(declared)}; "
                "select the columns in the declared order",
            )
        return [batch.column(name) for name in declared]

    def _cast_column(self, column: Any, field: pa.Field) -> Any:
        if column.type == field.type:
            return column
        if has_more_digits(field.type, column.type):
            return with_more_digits(column, field.type)
        refusal = _refusal(column.type, field.type)
        if refusal:
            raise self._error(field.name, f"is {column.type}, declared is {field.type}: {refusal}")
        try:
            return _plain(column).cast(field.type, safe=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise self._error(
                field.name,
                f"is {column.type} and does not fit the declared {field.type} without loss: {error}",
            ) from error

    def _error(self, column: str, what: str) -> InvalidRequest:
        return InvalidRequest(f"{self.stage}: column {column!r} {what}", stage=self.stage, column=column)


def _plain(column: Any) -> Any:
    """The column without extension type and run-end encoding, which Arrow's cast does not remove, and without
    dictionary, for which it asks for too much.
    """
    if isinstance(column.type, pa.BaseExtensionType):
        column = (
            pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
            if isinstance(column, pa.ChunkedArray)
            else column.storage
        )
    if _is_list_view(column.type):
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([_as_list(chunk) for chunk in column.chunks], _list_of(column.type))
        return _as_list(column)
    if pa.types.is_dictionary(column.type):
        return decoded(column)
    if not pa.types.is_run_end_encoded(column.type):
        return column
    return compute().run_end_decode(column)


def _is_list_view(kind: Any) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _list_of(kind: Any) -> Any:
    return pa.large_list(kind.value_field)


def _as_list(column: Any) -> Any:
    """A list view as a list. Arrow 26's cast gives offsets of the wrong length, unchecked."""
    nulls = column.is_null()
    lengths = np.where(nulls.to_numpy(zero_copy_only=False), 0, column.sizes.to_numpy())
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))
    return pa.LargeListArray.from_arrays(offsets, column.flatten(), _list_of(column.type), mask=nulls)


# A safe cast between types of one kind keeps the meaning.
_KINDS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("boolean", pa.types.is_boolean),
    ("number", lambda t: pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t)),
    ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)),
    (
        "binary",
        lambda t: (
            pa.types.is_binary(t)
            or pa.types.is_large_binary(t)
            or pa.types.is_binary_view(t)
            or pa.types.is_fixed_size_binary(t)
        ),
    ),
    ("date", pa.types.is_date),
    ("time of day", pa.types.is_time),
    ("instant", lambda t: pa.types.is_timestamp(t) and t.tz is not None),
    ("local timestamp", pa.types.is_timestamp),
    ("duration", pa.types.is_duration),
    (
        "list",
        lambda t: (
            pa.types.is_list(t)
            or pa.types.is_large_list(t)
            or pa.types.is_fixed_size_list(t)
            or pa.types.is_list_view(t)
            or pa.types.is_large_list_view(t)
        ),
    ),
    ("map", pa.types.is_map),
    ("struct", pa.types.is_struct),
)


def _kind(type_: Any) -> str:
    return next((kind for kind, belongs in _KINDS if belongs(type_)), str(type_))


def _refusal(actual: Any, declared: Any) -> str | None:
    """Why a cast would change the values' meaning; None if it would not."""
    while True:
        if isinstance(actual, pa.BaseExtensionType):
            actual = actual.storage_type
        elif pa.types.is_dictionary(actual) or pa.types.is_run_end_encoded(actual):
            actual = actual.value_type
        else:
            break
    if actual == declared or pa.types.is_null(actual):
        return None
    kind, declared_kind = _kind(actual), _kind(declared)
    if kind == "local timestamp" and declared_kind == "instant":
        return "say which zone its values are in with pyarrow.compute.assume_timezone"
    if kind == "instant" and declared_kind == "local timestamp":
        return "take the local time with pyarrow.compute.local_timestamp"
    if kind != declared_kind:
        return f"a {kind} is not made a {declared_kind} silently; convert it in the function or change the schema"
    if declared_kind == "list":
        return _inner_refusal(actual.value_type, declared.value_type)
    if declared_kind == "map":
        return _inner_refusal(actual.key_type, declared.key_type) or _inner_refusal(
            actual.item_type, declared.item_type
        )
    if declared_kind == "struct":
        names, expected = [field.name for field in actual], [field.name for field in declared]
        if names != expected:
            return f"its fields are {', '.join(names)}, declared are {', '.join(expected)}"
        refusals = (_inner_refusal(a.type, b.type) for a, b in zip(actual, declared, strict=True))
        return next((refusal for refusal in refusals if refusal), None)
    return None


def _inner_refusal(actual: Any, declared: Any) -> str | None:
    if _is_list_view(actual) and actual != declared:
        return "pyarrow does not convert list views inside of other types: make them lists in the function"
    return _refusal(actual, declared)
