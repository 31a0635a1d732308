"""States that Arrow has no kernel for: merged by the groups' codes, which number the groups by first appearance.

    ==================  ==================================================  ==========================
    state               lifted                                              merged by
    ==================  ==================================================  ==========================
    :class:`Moments`    count 1, mean, sum of squared deviations 0          Chan, Golub and LeVeque
    :class:`Values`     a list of one value                                 concatenation
    :class:`Foremost`   the value                                           Spark's order of values
    :class:`Again`      a column that is a state already                    that state
    ==================  ==================================================  ==========================

The state of a group without values has the count 0, or is an empty list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import canonical
from spark_client.arrow import SortCodes, SortKey, array_over, group_codes, offsets, values, widened

from .group_states import Merging, StateColumn

MOMENTS = pa.struct([("count", pa.int64()), ("mean", pa.float64()), ("deviations", pa.float64())])


@dataclass(frozen=True)
class Moments(Merging):
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
class Values(Merging):
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
        found = column.flatten()
        if self.distinct and len(found):
            owners, found = _different(owners, found)
        order = np.argsort(owners, kind="stable")
        return _lists(found.take(array_over(order)), np.bincount(owners, minlength=groups), self.type)


@dataclass(frozen=True)
class Foremost(Merging):
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
        found = np.full(groups, -1)
        # Of several places for one group numpy keeps the last.
        found[codes[places]] = places
        there = pa.py_buffer(np.packbits(found >= 0, bitorder="little"))
        return column.take(pa.Array.from_buffers(pa.int64(), groups, [there, pa.py_buffer(found)]))


@dataclass(frozen=True)
class Again:
    """A state that a column has already: rows of groups are grouped once more, by fewer keys."""

    column: str
    state: StateColumn

    @property
    def type(self) -> pa.DataType:
        return self.state.type

    @property
    def kernel(self) -> str | None:
        return self.state.kernel

    def lift(self, batch: Any) -> pa.Array:
        return batch.column(self.column)

    def merged(self, column: pa.Array, codes: NDArray[np.int64], groups: int) -> pa.Array:
        return self.state.merged(column, codes, groups)

    def ready(self, column: Any) -> Any:
        return self.state.ready(column)

    def settled(self, column: Any, stage: str) -> Any:
        return self.state.settled(column, stage)


def _different(owners: NDArray[np.int64], elements: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    pairs = [array_over(owners), canonical(elements)]
    if pa.types.is_nested(elements.type):
        first = first_rows(values(group_codes(pairs), np.int32))
        return owners[first], elements.take(array_over(first))
    names = ["owner", "element"]
    found = pa.table(pairs, names=names).group_by(names, use_threads=False).aggregate([]).combine_chunks()
    return values(found["owner"].chunk(0), np.int64), found["element"].chunk(0)


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
