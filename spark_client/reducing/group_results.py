"""Results of aggregates from the states of their groups, in Spark's types, by Spark's rules of rounding and of null."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import InvalidRequest
from spark_client.arrow import array_over, offsets, values, widened

from .group_states import as_floats


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
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded by the stage before

    return pc.divide(total, count.cast(pa.float64(), safe=False))


def decimal_average(kind: pa.DataType, total: pa.Array, count: pa.Array) -> pa.Array:
    """A decimal of type ``kind``, rounded half up. Arrow's quotient has many more digits and is cut there, which
    leaves the digit that decides.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    quotient = pc.divide(
        total.cast(pa.decimal256(38, total.type.scale)),
        pc.if_else(pc.equal(count, 0), pa.scalar(1, pa.int64()), count).cast(pa.decimal256(20, 0)),
    )
    return pc.round(quotient, ndigits=kind.scale, round_mode="half_towards_infinity").cast(kind)


def deviation(freedom: int, state: pa.Array, *, root: bool) -> pa.Array:
    """The variance with ``freedom`` degrees less than values, or its square root; null with too few values."""
    counts = values(state.field(0), np.int64)
    enough = np.flatnonzero(counts > freedom)
    found = values(state.field(2), np.float64)[enough] / (counts[enough] - freedom)
    return _place(np.sqrt(found) if root else found, enough, len(counts))


def length(state: pa.Array) -> pa.Array:
    """How many values a list has."""
    return array_over(np.diff(offsets(state)).astype(np.int64))


def quantile(share: float, state: pa.Array) -> pa.Array:
    """The exact quantile of each list, linearly between its neighbours; NaN is above all numbers."""
    elements = widened(state.flatten(), pa.float64())
    counts = np.diff(offsets(state)).astype(np.int64)
    some = np.flatnonzero(counts)
    owners = np.repeat(np.arange(len(counts)), counts)
    numbers = values(elements, np.float64)
    numbers = numbers[np.lexsort((numbers, owners))]
    places = share * (counts[some] - 1)
    below = np.floor(places).astype(np.int64)
    above = np.ceil(places).astype(np.int64)
    starts = (np.cumsum(counts) - counts)[some]
    lower, higher = numbers[starts + below], numbers[starts + above]
    between = (above - places) * lower + (places - below) * higher
    # As Spark: half of the least double, twice, would be none.
    equal = (below == above) | (lower == higher)
    return _place(np.where(equal, lower, between), some, len(counts))


def approximate_quantile(share: float, state: pa.Array) -> pa.Array:
    """Arrow's t-digest of each list, which ignores NaN."""
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    elements = widened(state.flatten(), pa.float64())
    counts = np.diff(offsets(state))
    owners = array_over(np.repeat(np.arange(len(counts)), counts))
    grouped = (
        pa.table([owners, elements], names=["list", "value"])
        .group_by("list", use_threads=False)
        .aggregate([("value", "tdigest", pc.TDigestOptions(q=share))])
        .combine_chunks()
    )
    found = pc.list_flatten(grouped["value_tdigest"]).combine_chunks()
    owned = values(grouped["list"].combine_chunks(), np.int64)
    return _place(values(found.fill_null(float("nan")), np.float64), owned, len(counts))


def _place(found: NDArray[np.float64], places: NDArray[np.int64], rows: int) -> pa.Array:
    """An array with these values at these rows, and null elsewhere."""
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    whole, there = np.zeros(rows), np.zeros(rows, np.uint8)
    whole[places], there[places] = found, 1
    flags = array_over(there).cast(pa.bool_())
    return pc.if_else(flags, array_over(whole), pa.scalar(None, pa.float64()))


def finished(results: Sequence[ResultColumn], states: Sequence[Any], stage: str) -> list[pa.Array]:
    """The columns of the results. Raises InvalidRequest: one does not fit its type."""
    found = []
    for result in results:
        try:
            found.append(result.finish(*(states[number] for number in result.states)))
        except pa.ArrowInvalid as error:
            raise InvalidRequest(
                f"{stage}: a value of {result.name!r} does not fit its type ({error}); cast the column to fewer "
                "digits before, or to double",
                stage=stage,
                column=result.name,
            ) from error
    return found
