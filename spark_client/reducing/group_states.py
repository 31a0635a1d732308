"""States of groups: one column each, from which aggregates are computed, and which merge in any order.

A state's column is made of a batch row by row (*lifted*: the state of a group of one row) and *merged* group by group.
So a row, one task's state of a group, and the state of all tasks have one form, and an exchange may carry any of them.

    ==================  ==================================================  ==========================
    state               lifted                                              merged by
    ==================  ==================================================  ==========================
    :class:`RowCount`   1                                                   Arrow's ``sum``
    :class:`Present`    1, or 0 for a null                                  Arrow's ``sum``
    :class:`Sum`        the value in the sum's type                         Arrow's ``sum``, checked
    :class:`Product`    the value as a double                               Arrow's ``product``
    :class:`Extreme`    the value; a float as an integer of the same order  Arrow's ``min`` or ``max``
    ==================  ==================================================  ==========================

Those that Arrow has no kernel for are in ``group_states``. Nulls do not count, except in ``RowCount``. The state of a
group without values is null or zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import array_over, canonical, compute, offsets, values
from flight_server.protocol import InvalidRequest
from spark_client.arrow import SortCodes, SortKey, decimal_halves, group_codes, widened

LONG, DOUBLE = pa.int64(), pa.float64()
_EXACT = Context(prec=76)


class StateColumn:
    """One column of a group's state. ``kernel`` is Arrow's aggregation that merges it; None for :meth:`merged`."""

    column: str | None
    type: pa.DataType
    kernel: str | None

    def lift(self, batch: Any) -> pa.Array:
        """The states of groups of one row each."""
        raise NotImplementedError

    def merged(self, column: pa.Array, codes: NDArray[np.int64], groups: int) -> pa.Array:
        """One state for each of the codes 0 to ``groups - 1``; only without a kernel."""
        raise NotImplementedError

    def ready(self, column: Any) -> Any:
        """The chunked column in a type in which the kernel cannot overflow."""
        return column

    def in_type(self, column: Any, stage: str) -> Any:  # noqa: ARG002 - no result of most states is out of range
        """The kernel's result in the state's type. Raises InvalidRequest if it does not fit."""
        return column


@dataclass(frozen=True)
class RowCount(StateColumn):
    """How many rows."""

    column: None = None
    type: pa.DataType = LONG
    kernel: str | None = "sum"

    def lift(self, batch: Any) -> pa.Array:
        return array_over(np.ones(batch.num_rows, np.int64))


@dataclass(frozen=True)
class Present(StateColumn):
    """How many values that are not null."""

    column: str
    type: pa.DataType = LONG
    kernel: str | None = "sum"

    def lift(self, batch: Any) -> pa.Array:
        column = batch.column(self.column)
        if not column.null_count:
            return array_over(np.ones(batch.num_rows, np.int64))
        return column.is_valid().cast(pa.int64())


@dataclass(frozen=True)
class Sum(StateColumn):
    """The sum as ``bigint``, ``double`` or decimal. Arrow's sum wraps around silently, so a sum that may leave the
    range is computed with more digits and then checked.
    """

    column: str
    type: pa.DataType
    kernel: str | None = "sum"

    def lift(self, batch: Any) -> pa.Array:
        return widened(batch.column(self.column), self.type)

    def ready(self, column: Any) -> Any:
        if pa.types.is_int64(self.type) and not _within(column, 2**63):
            return column.cast(pa.decimal128(38, 0))
        if pa.types.is_decimal(self.type):
            most = 10**self.type.precision
            # A look at the values takes a tenth of the time of the cast.
            if len(column) * most >= 2**127 and not _within(column, most):
                return column.cast(pa.decimal256(76, self.type.scale))
        return column

    def in_type(self, column: Any, stage: str) -> Any:
        if column.type == self.type:
            return column
        try:
            return column.cast(self.type)
        except pa.ArrowInvalid as error:
            wide = f"decimal(38, {getattr(self.type, 'scale', 0)})"
            remedy = "" if str(self.type) == wide else f"; cast it to {wide} before, or to double"
            raise InvalidRequest(
                f"{stage}: the sum of column {self.column!r} does not fit {self.type}{remedy}",
                stage=stage,
                column=self.column,
            ) from error


def _within(column: Any, limit: int) -> bool:
    """Whether any sum of these integers, or of the digits of these decimals, is below the limit."""
    if pa.types.is_decimal128(column.type) and _most_by_words(column) * len(column) < limit:
        return True
    bounds = compute().min_max(column).as_py()
    most = max(abs(_digits(bounds[which], column.type)) for which in ("min", "max"))
    return most * len(column) < limit


def _most_by_words(column: Any) -> int:
    """What no value's digits exceed, by their upper 64 bits: a sixth of the time of a comparison of all 128."""
    most = 0
    for chunk in column.chunks:
        if len(chunk):
            high = decimal_halves(chunk)[:, 1]
            most = max(most, int(high.max()) + 1, -int(high.min()))
    return most << 64


def _digits(value: Any, kind: pa.DataType) -> int:
    """The integer of which Arrow makes the value; 0 for null."""
    if value is None or not pa.types.is_decimal(kind):
        return int(value or 0)
    # It may have more digits than Python's own context.
    return int(value.scaleb(kind.scale, _EXACT))


@dataclass(frozen=True)
class Product(StateColumn):
    """The product as a double."""

    column: str
    type: pa.DataType = DOUBLE
    kernel: str | None = "product"

    def lift(self, batch: Any) -> pa.Array:
        return widened(batch.column(self.column), self.type)


@dataclass(frozen=True)
class Extreme(StateColumn):
    """The least or greatest value. Text by its bytes. Arrow's ``min`` and ``max`` ignore NaN, and Spark's order has it
    above all numbers: so floats become integers of that order. Durations have no kernel, and become integers, too.
    """

    column: str
    type: pa.DataType
    kernel: str | None

    @classmethod
    def of(cls, column: str, kind: pa.DataType, kernel: str) -> Extreme:
        if pa.types.is_floating(kind) or pa.types.is_duration(kind):
            return cls(column, pa.int32() if kind.bit_width == 32 else pa.int64(), kernel)
        return cls(column, kind, kernel)

    def lift(self, batch: Any) -> pa.Array:
        column = batch.column(self.column)
        if pa.types.is_floating(column.type):
            return as_integers(column)
        return column.view(self.type) if pa.types.is_duration(column.type) else column


def as_integers(floats: pa.Array) -> pa.Array:
    """Integers in the order of the floats, with NaN, of any bits, above all."""
    nan = pa.scalar(float("nan"), floats.type)
    kind = pa.int32() if floats.type.bit_width == 32 else pa.int64()
    return _turn(compute().if_else(compute().is_nan(floats), nan, floats).view(kind))


def as_floats(integers: pa.Array, kind: pa.DataType) -> pa.Array:
    """The reverse of :func:`as_integers`."""
    return _turn(integers).view(kind)


def _turn(integers: pa.Array) -> pa.Array:
    """Negative numbers with all bits but the sign inverted: a float's bits grow with its magnitude."""
    bits = pa.scalar((1 << (integers.type.bit_width - 1)) - 1, integers.type)
    negative = compute().less(integers, pa.scalar(0, integers.type))
    return compute().if_else(negative, compute().bit_wise_xor(integers, bits), integers)


MOMENTS = pa.struct([("count", pa.int64()), ("mean", pa.float64()), ("deviations", pa.float64())])


@dataclass(frozen=True)
class Moments(StateColumn):
    """Count, mean, and the sum of squared deviations from it; merged as by Chan, Golub and LeVeque (1983), whose result
    is exact where the difference of the sum of squares and the squared sum has lost all digits.
    """

    column: str
    type: pa.DataType = MOMENTS
    kernel: str | None = None

    def lift(self, batch: Any) -> pa.Array:
        column = widened(batch.column(self.column), pa.float64())
        present = column.is_valid().cast(pa.int64())
        mean = column.fill_null(0.0)
        nothing = array_over(np.zeros(batch.num_rows))
        return pa.StructArray.from_arrays([present, mean, nothing], fields=list(MOMENTS))

    def merged(self, column: pa.Array, codes: NDArray[np.int64], groups: int) -> pa.Array:
        counts = values(column.field(0), np.int64)
        means, deviations = (values(column.field(index), np.float64) for index in (1, 2))
        total = np.bincount(codes, counts, groups)
        # From one of the group's own means: equal values have no deviation, and large ones no overflow.
        base = np.zeros(groups)
        some = np.flatnonzero(counts)
        base[codes[some]] = means[some]
        with np.errstate(invalid="ignore", over="ignore"):
            nearby = np.where(counts > 0, counts * (means - base[codes]), 0.0)
            mean = base + np.bincount(codes, nearby, groups) / np.maximum(total, 1)
            apart = np.where(counts > 0, means - mean[codes], 0.0)
            deviation = np.bincount(codes, deviations + counts * apart * apart, groups).astype(np.float64)
        parts = [array_over(total.astype(np.int64)), array_over(mean), array_over(deviation)]
        return pa.StructArray.from_arrays(parts, fields=list(MOMENTS))


@dataclass(frozen=True)
class Values(StateColumn):
    """All values, or all different ones: NaN equals NaN, and -0.0 equals 0.0."""

    column: str
    type: pa.DataType
    distinct: bool
    kernel: str | None = None

    def lift(self, batch: Any) -> pa.Array:
        column = batch.column(self.column)
        present = column.is_valid().cast(pa.int32()) if column.null_count else None
        counts = np.ones(len(column), np.int32) if present is None else values(present, np.int32)
        return _lists(column.drop_null() if column.null_count else column, counts, self.type)

    def merged(self, column: pa.Array, codes: NDArray[np.int64], groups: int) -> pa.Array:
        owners = np.repeat(codes, np.diff(offsets(column)))
        elements = column.flatten()
        if self.distinct and len(elements):
            owners, elements = _different(owners, elements)
        order = np.argsort(owners, kind="stable")
        return _lists(elements.take(array_over(order)), np.bincount(owners, minlength=groups), self.type)


@dataclass(frozen=True)
class Foremost(StateColumn):
    """The least or greatest of values that are compared part by part: structs, and lists that can be sorted."""

    column: str
    type: pa.DataType
    greatest: bool
    kernel: str | None = None

    def lift(self, batch: Any) -> pa.Array:
        return batch.column(self.column)

    def merged(self, column: pa.Array, codes: NDArray[np.int64], groups: int) -> pa.Array:
        places = np.flatnonzero(values(column.is_valid().cast(pa.int8()), np.int8))
        order = SortCodes.of_columns(
            [column.take(array_over(places))], [SortKey(self.column)], len(places)
        ).order()
        places = places[order if self.greatest else order[::-1]]
        rows = np.full(groups, -1)
        # Of several places for one group numpy keeps the last.
        rows[codes[places]] = places
        valid = pa.py_buffer(np.packbits(rows >= 0, bitorder="little"))
        return column.take(pa.Array.from_buffers(pa.int64(), groups, [valid, pa.py_buffer(rows)]))


@dataclass(frozen=True)
class Again(StateColumn):
    """A state that a column has already: rows of groups are grouped once more, by fewer keys."""

    column: str
    type: pa.DataType
    kernel: str | None
    state: StateColumn

    @classmethod
    def of(cls, column: str, state: StateColumn) -> Again:
        return cls(column, state.type, state.kernel, state)

    def lift(self, batch: Any) -> pa.Array:
        return batch.column(self.column)

    def merged(self, column: pa.Array, codes: NDArray[np.int64], groups: int) -> pa.Array:
        return self.state.merged(column, codes, groups)

    def ready(self, column: Any) -> Any:
        return self.state.ready(column)

    def in_type(self, column: Any, stage: str) -> Any:
        return self.state.in_type(column, stage)


def _different(owners: NDArray[np.int64], elements: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    pairs = [array_over(owners), canonical(elements)]
    if pa.types.is_nested(elements.type):
        first = first_rows(values(group_codes(pairs), np.int32))
        return owners[first], elements.take(array_over(first))
    names = ["owner", "element"]
    distinct = pa.table(pairs, names=names).group_by(names, use_threads=False).aggregate([]).combine_chunks()
    return values(distinct["owner"].chunk(0), np.int64), distinct["element"].chunk(0)


def first_rows(codes: NDArray[Any]) -> NDArray[np.int64]:
    """The first row of each group, of codes that count groups by their first appearance."""
    highest = np.maximum.accumulate(codes)
    return np.flatnonzero(np.diff(highest, prepend=-1) > 0)


def _lists(elements: pa.Array, counts: NDArray[Any], kind: pa.DataType) -> pa.Array:
    bounds = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    return pa.Array.from_buffers(
        kind, len(counts), [None, pa.py_buffer(bounds)], null_count=0, children=[elements]
    )
