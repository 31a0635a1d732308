"""``pair``: rows of a key that have the first and the second value of ``kind`` cancel; rows without a partner stay.

The first row of one kind pairs with the first of the other, the second with the second, and so on, by ``order_by`` and
then by all columns; a row with count 3 is three rows. The greatest of the kind that has more remain. The order of
arrival does not matter, until compaction has removed a pair: it is settled then, and a smaller row that comes after the
delay pairs with the remaining rows.

Needed are the rows that are shown, every count below zero, the rows that later updates change, and each pair that a
later version may undo. A row is not shown at a version that has at least as many rows of the other kind as it has of
its own kind up to it. So it is shown at none that can still be asked for if the rows of the other kind that stay are at
least those up to it and the later updates of these. Of such rows equally many of both kinds can go: that changes
neither which others are shown, nor by how many one kind has more.

With ``emit`` it matters which rows pair. In each kind the rows before the first one that later updates change are, at
every version that can still be asked for, the first of their kind. So the pairs among these, the first with the first,
are the same at each of these versions, and without them the others pair as they did: only these go.

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
from .ranked import Counts, Groups, Kept, of_rows, sums, sums_upto
from .rule import Rule

LATENCY_COLUMN = "latency"


class Pairs(Rule):
    """The rule ``pair``. Raises InvalidRequest if the values do not fit, or a pair's row cannot be described."""

    any_update_counts = True
    rounds = 2

    def __init__(self, spec: KeepRule, schema: pa.Schema) -> None:
        assert spec.kind is not None
        assert spec.values is not None
        if spec.kind in spec.key:
            raise InvalidRequest(
                f"keep: {spec.kind!r} is both 'kind' and a column of 'key': no two rows could pair"
            )
        self._key, self._kind = list(spec.key), spec.kind
        self._order = [each.column for each in spec.order_by[:1]]
        field = schema.field(spec.kind)
        self._first, self._second = (typed_value(value, field, "values") for value in spec.values)
        self._names = [*self._key, *map(str, spec.values), LATENCY_COLUMN] if self._order else self._key
        if spec.emit is not None:
            check_differences(spec.order_by, schema)
            names = [*self._names, *RESERVED_COLUMNS]
            if len(set(names)) != len(names):
                raise InvalidRequest(
                    f"keep: the rows for {spec.emit!r} would have the columns {self._names}, of which two have one "
                    "name or one is reserved: leave 'order_by' out, or rename the column of the key"
                )
            none = np.zeros(0, np.int64)
            self.emitted_schema = self._pairs(pa.RecordBatch.from_pylist([], schema), none, none).schema

    def kept(self, groups: Groups) -> Kept:
        return Kept(groups.rows, self._alone(groups, np.zeros(len(groups.counts), np.int64)))

    def needed(self, groups: Groups, later_retractions: Counts) -> Kept:
        alone = self._alone(groups, later_retractions)
        return Kept(groups.rows, np.where(groups.counts < 0, groups.counts, alone))

    def paired(self, groups: Groups) -> Kept:
        present = np.maximum(groups.counts, 0)
        kinds = [np.where(kind, present, 0) for kind in self._kinds(groups.rows)]
        pairs = np.minimum(*(sums(groups, each) for each in kinds))
        # All pairs lie one behind the other on a line, key by key. A row covers as many places as it has pairs; where a
        # row of either kind begins to cover, a new range of equal pairs begins.
        (row, at), (other, other_at) = (_cover(groups, each, pairs) for each in kinds)
        begins = np.union1d(at, other_at)
        counts = np.diff(begins, append=pairs.sum())
        firsts = row[np.searchsorted(at, begins, side="right") - 1]
        seconds = other[np.searchsorted(other_at, begins, side="right") - 1]
        return Kept(self._pairs(groups.rows, firsts, seconds), counts.astype(np.int64))

    def _alone(self, groups: Groups, later: Counts) -> Counts:
        """How many copies of each row remain without the pairs that no ``later`` update needs."""
        present = np.maximum(groups.counts, 0)
        kinds = self._kinds(groups.rows)
        copies = [np.where(kind, present, 0) for kind in kinds]
        free = []
        for kind, each, other in zip(kinds, copies, reversed(copies), strict=True):
            moved = sums_upto(groups, np.where(kind, -later, 0))
            partners = of_rows(groups, sums(groups, np.maximum(other + later, 0)))
            below = sums_upto(groups, each) - each
            changes = moved if self.emitted_schema is not None else later
            free.append(np.where(changes == 0, np.clip(partners - below - moved, 0, each), 0))
        pairs = of_rows(groups, np.minimum(*(sums(groups, each) for each in free)))
        for each in free:
            below = sums_upto(groups, each) - each
            present = present - np.clip(pairs - below, 0, each)
        return present

    def _kinds(self, rows: pa.RecordBatch) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        column = rows.column(self._kind)
        return equal_to(column, self._first), equal_to(column, self._second)

    def _pairs(self, rows: pa.RecordBatch, firsts: Counts, seconds: Counts) -> pa.RecordBatch:
        columns = [rows.column(name).take(pa.array(firsts)) for name in self._key]
        for name in self._order:
            ends = [rows.column(name).take(pa.array(each)) for each in (firsts, seconds)]
            columns += [*ends, difference(ends[1], ends[0])]
        return pa.RecordBatch.from_arrays(columns, self._names)


def _cover(groups: Groups, present: Counts, pairs: Counts) -> tuple[Counts, Counts]:
    """The rows that are in pairs, and the place on the line of all pairs at which each begins."""
    before = np.cumsum(present) - present
    before -= of_rows(groups, before[groups.starts])
    rows = np.flatnonzero((present > 0) & (before < of_rows(groups, pairs)))
    line = of_rows(groups, np.cumsum(pairs) - pairs)
    return rows, (line + before)[rows]
