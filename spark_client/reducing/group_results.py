"""Results of aggregates from the states of their groups, in Spark's types, by Spark's rules of rounding and of null."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import compute, flags
from flight_server.protocol import InvalidRequest
from spark_client.arrow import array_over, decimal_halves, offsets, values, widened

from .group_states import as_floats

_MOST_LONG = (1 << 63) - 1
_WORD = (1 << 64) - 1
_MOST_DIGITS = 38


@dataclass(frozen=True)
class ResultColumn:
    """One column of the result: ``finish`` over the columns of ``states``, which are numbers of states."""

    name: str
    states: tuple[int, ...]
    finish: Callable[..., pa.Array]


def as_it_is(state: pa.Array) -> pa.Array:
    """The state itself."""
    return state


def counted(state: pa.Array) -> pa.Array:
    """A count, 0 without rows."""
    return state.fill_null(0)


def extreme(kind: pa.DataType, state: pa.Array) -> pa.Array:
    """The least or greatest value, in the column's type."""
    if pa.types.is_floating(kind):
        return as_floats(state, kind)
    return state.view(kind) if pa.types.is_duration(kind) else state


def average(total: pa.Array, count: pa.Array) -> pa.Array:
    """A double, null without values."""
    return compute().divide(total, count.cast(pa.float64(), safe=False))


def decimal_average(kind: pa.DataType, total: pa.Array, count: pa.Array) -> pa.Array:
    """A decimal of type ``kind``, rounded half up; null without values. Raises ``ArrowInvalid``: it does not fit.

    Not by Arrow, whose division by more than 32 bits is wrong for some dividends, such as the greatest ``bigint`` with
    ten decimals.
    """
    times = 10 ** (kind.scale - total.type.scale)
    most = _MOST_LONG // times - 1
    valid = flags(total.is_valid())
    counts = np.maximum(values(count, np.int64), 1)
    low, high = decimal_halves(total).T
    is_short = valid & (high == low >> 63) & (low != -_MOST_LONG - 1) & (counts <= most)
    whole, rest = np.divmod(np.where(is_short, np.abs(low), 0), counts)
    is_short &= whole <= most
    more, rest = np.divmod(np.where(is_short, rest, 0) * times, counts)
    quotients = np.where(is_short, whole, 0) * times + more + (rest >= counts - rest)
    quotients = np.where(low < 0, -quotients, quotients)
    pairs = np.stack([quotients, quotients >> 63], axis=1)
    for row in np.flatnonzero(valid & ~is_short).tolist():
        dividend, divisor = (int(high[row]) << 64 | int(low[row]) & _WORD) * times, int(counts[row])
        quotient = (2 * abs(dividend) + divisor) // (2 * divisor)
        if quotient >= 10**kind.precision:
            raise pa.ArrowInvalid(f"an average has more than {kind.precision} digits")
        signed = quotient if dividend > 0 else -quotient
        pairs[row] = (signed & _WORD) - ((signed & 1 << 63) << 1), signed >> 64
    data = [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(pairs)]
    return pa.Array.from_buffers(pa.decimal128(_MOST_DIGITS, kind.scale), len(total), data).cast(kind)


def deviation(freedom: int, state: pa.Array, *, root: bool) -> pa.Array:
    """The variance with ``freedom`` degrees less than values, or its square root; null with too few values."""
    counts = values(state.field(0), np.int64)
    enough = np.flatnonzero(counts > freedom)
    variances = values(state.field(2), np.float64)[enough] / (counts[enough] - freedom)
    return _place(np.sqrt(variances) if root else variances, enough, len(counts))


def length(state: pa.Array) -> pa.Array:
    """How many values a list has."""
    return array_over(np.diff(offsets(state)).astype(np.int64))


def median(state: pa.Array) -> pa.Array:
    """The exact median of each list, the mean of the two values in the middle; NaN is above all numbers."""
    elements = widened(state.flatten(), pa.float64())
    counts = np.diff(offsets(state)).astype(np.int64)
    some = np.flatnonzero(counts)
    owners = np.repeat(np.arange(len(counts)), counts)
    numbers = values(elements, np.float64)
    numbers = numbers[np.lexsort((numbers, owners))]
    places = 0.5 * (counts[some] - 1)
    below = np.floor(places).astype(np.int64)
    above = np.ceil(places).astype(np.int64)
    starts = (np.cumsum(counts) - counts)[some]
    lower, higher = numbers[starts + below], numbers[starts + above]
    between = (above - places) * lower + (places - below) * higher
    # As Spark: half of the least double, twice, would be none.
    equal = (below == above) | (lower == higher)
    return _place(np.where(equal, lower, between), some, len(counts))


def _place(numbers: NDArray[np.float64], places: NDArray[np.int64], rows: int) -> pa.Array:
    """An array with these values at these rows, and null elsewhere."""
    whole, present = np.zeros(rows), np.zeros(rows, np.uint8)
    whole[places], present[places] = numbers, 1
    flags = array_over(present).cast(pa.bool_())
    return compute().if_else(flags, array_over(whole), pa.scalar(None, pa.float64()))


def finished(results: Sequence[ResultColumn], states: Sequence[Any], stage: str) -> list[pa.Array]:
    """The columns of the results. Raises InvalidRequest: one does not fit its type."""
    columns = []
    for result in results:
        try:
            columns.append(result.finish(*(states[number] for number in result.states)))
        except pa.ArrowInvalid as error:
            raise InvalidRequest(
                f"{stage}: a value of {result.name!r} does not fit its type ({error}); cast the column to fewer "
                "digits before, or to double",
                stage=stage,
                column=result.name,
            ) from error
    return columns
