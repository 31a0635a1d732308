"""Columns and values that a keep rule declares, checked against the schema before the first row comes.

A column of ``key`` or ``order_by`` must have a type that Arrow sorts: no list, struct, map, union or extension type, no
float16, no view. A value of ``closed_by`` or ``values`` must be one that the column can hold: a text for texts, bytes,
dates and timestamps (as ISO 8601), a number for numbers, true and false for booleans.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flight_server.keys import is_bytes
from flight_server.protocol import InvalidRequest, KeepRule, Order


def check_columns(spec: KeepRule, schema: pa.Schema) -> None:
    """Raises InvalidRequest for a column whose type cannot be a key or an order."""
    for name in spec.key:
        _check_sortable(schema.field(name), "key")
    for order in spec.order_by:
        _check_sortable(schema.field(order.column), "order_by")


def check_differences(order_by: tuple[Order, ...], schema: pa.Schema) -> None:
    """Raises InvalidRequest if the first column of ``order_by`` has no differences, as texts and booleans."""
    for order in order_by[:1]:
        field = schema.field(order.column)
        try:
            difference(pa.nulls(0, field.type), pa.nulls(0, field.type))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise InvalidRequest(
                f"keep: 'emit' cannot give the latency of {field.name!r}, which is {field.type}: order by a number or "
                "a time first, or leave 'order_by' out"
            ) from error


def difference(later: pa.Array, earlier: pa.Array) -> pa.Array:
    """``later - earlier``. Of integers int64, because those of unsigned ones can be below zero; it wraps around. Of
    dates and times a duration.
    """
    if pa.types.is_integer(later.type):
        later, earlier = (pc.cast(each, pa.int64(), safe=False) for each in (later, earlier))
    return pc.subtract(later, earlier)


def typed_value(value: Any, field: pa.Field, what: str) -> pa.Scalar:
    """A value of the declaration as one of the column; raises InvalidRequest if it cannot be one."""
    kind = field.type
    try:
        match value:
            case bool():
                fits = pa.types.is_boolean(kind)
            case str():
                others = (pa.types.is_string_view, pa.types.is_fixed_size_binary, pa.types.is_temporal)
                fits = is_bytes(kind) or any(check(kind) for check in others)
            case _:
                fits = pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_integer(kind)
        if not fits or (isinstance(value, float) and pa.types.is_integer(kind) and not value.is_integer()):
            raise TypeError
        if pa.types.is_decimal(kind):
            typed = pa.scalar(Decimal(str(value)), kind)
        elif pa.types.is_temporal(kind):
            typed = pa.scalar(value).cast(kind)
        else:
            typed = pa.scalar(value, kind)
        equal_to(pa.nulls(0, kind), typed)
    except (TypeError, OverflowError, pa.ArrowException) as error:
        raise InvalidRequest(
            f"keep: {value!r} in {what!r} cannot be in the column {field.name!r}, which is {kind}"
        ) from error
    return typed


def equal_to(column: pa.Array, value: pa.Scalar) -> NDArray[np.bool_]:
    """For each row whether it has the value; a null has not."""
    mask: NDArray[np.bool_] = pc.fill_null(pc.equal(column, value), fill_value=False).to_numpy(
        zero_copy_only=False
    )
    return mask


def _check_sortable(field: pa.Field, what: str) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    try:
        if pa.types.is_nested(kind):
            raise TypeError  # Arrow sorts structs, but by no order that it promises
        pc.sort_indices(pa.record_batch([pa.nulls(0, kind)], ["column"]), sort_keys=[("column", "ascending")])
    except (TypeError, pa.ArrowException) as error:
        raise InvalidRequest(
            f"keep: the column {field.name!r} of {what!r} is {field.type}, whose values have no order: name a column "
            "of numbers, texts, bytes, booleans, dates or times"
        ) from error
