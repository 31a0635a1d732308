"""``pair``: rows of a key that have the first and the second value of ``kind`` cancel; rows without a partner stay.

At most one row of each kind per key is meant at a time: a key that is one message, one request. They may come in either
order. If a key has several of one kind, the least (by ``order_by``) pair first and the greatest remain without a
partner. How many remain is then always right. Which of them remain is not, once compaction has removed pairs: a smaller
row that comes later would have taken the place of a row that is gone.

What is needed: the rows that are shown, and every count below zero. In a key with later retractions all rows are
needed: the partner of a retracted row is without a partner again. For keys as they are meant this changes nothing that
is shown later: with one row of each kind, what is shown depends only on the difference of their counts, and a pair has
one copy of each.

Emitting. :meth:`Pairs.paired` has one row for each pair: the columns of the key; with ``order_by`` its first column of
the row of the first kind and of the second, named as the two values (``send``, ``recv``), and ``latency``, the second
less the first: int64 of integers, a duration of dates and times, null if one of them is.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import RESERVED_COLUMNS, InvalidRequest, KeepRule

from .declared import check_differences, difference, equal_to, typed_value
from .groups import Groups, Kept
from .ranked import Counts, greatest, of_rows, sums

LATENCY_COLUMN = "latency"


class Pairs:
    """See the module's text. Raises InvalidRequest if the values do not fit, or a pair's row cannot be described."""

    in_parts = False

    def __init__(self, spec: KeepRule, schema: pa.Schema) -> None:
        assert spec.kind is not None
        assert spec.values is not None
        if spec.kind in spec.key:
            raise InvalidRequest(
                f"keep: {spec.kind!r} is both 'kind' and a column of 'key': no two rows could pair"
            )
        self._key, self._kind, self._order = (
            list(spec.key),
            spec.kind,
            [each.column for each in spec.order_by[:1]],
        )
        field = schema.field(spec.kind)
        self._first, self._second = (typed_value(value, field, "values") for value in spec.values)
        self._names = [*self._key, *map(str, spec.values), LATENCY_COLUMN] if self._order else self._key
        if spec.emit is not None:
            check_differences(spec.order_by, schema)
            taken = [*self._names, *RESERVED_COLUMNS]
            if len(set(taken)) != len(taken):
                raise InvalidRequest(
                    f"keep: the rows for {spec.emit!r} would have the columns {self._names}, of which two have one "
                    "name or one is reserved: leave 'order_by' out, or rename the column of the key"
                )
        self._emits = spec.emit is not None
        self._schema = schema

    @property
    def emitted_schema(self) -> pa.Schema | None:
        if not self._emits:
            return None
        none = np.zeros(0, np.int64)
        return self._pairs(pa.RecordBatch.from_pylist([], self._schema), none, none).schema

    def kept(self, groups: Groups) -> Kept:
        first, second = self._kinds(groups.rows)
        return Kept(groups.rows, _alone(groups, first, second))

    def needed(self, groups: Groups, later_retractions: Counts) -> Kept:
        first, second = self._kinds(groups.rows)
        settled = of_rows(groups, sums(groups, later_retractions < 0) == 0) & (groups.counts >= 0)
        return Kept(groups.rows, np.where(settled, _alone(groups, first, second), groups.counts))

    def check_idempotent(self, sample: pa.RecordBatch) -> None:
        pass

    def paired(self, groups: Groups) -> Kept:
        assert self._emits
        kinds = [np.where(kind, np.maximum(groups.counts, 0), 0) for kind in self._kinds(groups.rows)]
        pairs = np.minimum(*(sums(groups, each) for each in kinds))
        # All pairs lie one behind the other on a line, key by key. A row covers as many places as it has pairs; where a
        # row of either kind begins to cover, a new run of equal pairs begins.
        (row, at), (other, other_at) = (_cover(groups, each, pairs) for each in kinds)
        begins = np.union1d(at, other_at)
        counts = np.diff(begins, append=pairs.sum())
        firsts = row[np.searchsorted(at, begins, side="right") - 1]
        seconds = other[np.searchsorted(other_at, begins, side="right") - 1]
        return Kept(self._pairs(groups.rows, firsts, seconds), counts.astype(np.int64))

    def _kinds(self, rows: pa.RecordBatch) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        column = rows.column(self._kind)
        return equal_to(column, self._first), equal_to(column, self._second)

    def _pairs(self, rows: pa.RecordBatch, firsts: Counts, seconds: Counts) -> pa.RecordBatch:
        columns = [rows.column(name).take(pa.array(firsts)) for name in self._key]
        for name in self._order:
            ends = [rows.column(name).take(pa.array(each)) for each in (firsts, seconds)]
            columns += [*ends, difference(ends[1], ends[0])]
        return pa.RecordBatch.from_arrays(columns, self._names)


def _alone(groups: Groups, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Counts:
    present = np.maximum(groups.counts, 0)
    kinds = [np.where(kind, present, 0) for kind in (first, second)]
    more = sums(groups, kinds[0]) - sums(groups, kinds[1])
    firsts = greatest(groups, kinds[0], np.maximum(of_rows(groups, more), 0))
    seconds = greatest(groups, kinds[1], np.maximum(of_rows(groups, -more), 0))
    return np.where(first, firsts, np.where(second, seconds, present))


def _cover(groups: Groups, present: Counts, pairs: Counts) -> tuple[Counts, Counts]:
    """The rows that are in pairs, and the place on the line of all pairs at which each begins."""
    before = np.cumsum(present) - present
    before -= of_rows(groups, before[groups.starts])
    rows = np.flatnonzero((present > 0) & (before < of_rows(groups, pairs)))
    line = of_rows(groups, np.cumsum(pairs) - pairs)
    return rows, (line + before)[rows]
