"""``until_closed``: all rows of a key until a closing row comes, then the k greatest of the others.

A closing row has all values of ``closed_by``; a null is none of them. A key is open while no closing row has a count
above zero: all its rows are shown. A closed key shows the k greatest of its other rows, and never a closing row.
A greater bid that comes after the closing row wins.

Needed are, of the closing rows, the greatest one: it alone shows that the key is closed, also to late rows. That is
``top_k`` with k = 1 over the closing rows, and its proof in ``ranked`` holds: a version is closed exactly if the
greatest closing row is there. Of the other rows, if some closing row is there at every version that can still be asked
for (its count and its later retractions sum to more than zero), those that ``top_k`` needs; else all.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import KeepRule

from .declared import equal_to, typed_value
from .ranked import Groups, Kept, greatest, needed_of_greatest, of_rows, sums
from .rule import Rule


class UntilClosed(Rule):
    """The rule ``until_closed``. Raises InvalidRequest if a value does not fit its column's type."""

    rounds = 1
    may_end_keys = True

    def __init__(self, spec: KeepRule, schema: pa.Schema) -> None:
        self._closed_by = [
            (name, typed_value(value, schema.field(name), "closed_by")) for name, value in spec.closed_by
        ]
        self._k = spec.k

    def kept(self, groups: Groups) -> Kept:
        closing = self._closing(groups.rows)
        closed = of_rows(groups, sums(groups, closing & (groups.counts > 0)) > 0)
        winners = greatest(groups, np.where(closing, 0, groups.counts), self._k)
        return Kept(groups.rows, np.where(closed, winners, np.maximum(groups.counts, 0)))

    def needed(self, groups: Groups, later_retractions: NDArray[np.int64]) -> Kept:
        closing = self._closing(groups.rows)
        stays_closed = sums(groups, closing & (groups.counts + later_retractions > 0)) > 0
        counts = groups.counts
        closings = needed_of_greatest(groups, np.where(closing, counts, 0), later_retractions, 1)
        others = np.where(closing, 0, counts)
        winners = needed_of_greatest(groups, others, later_retractions, self._k)
        left = np.where(of_rows(groups, stays_closed), winners, counts)
        return Kept(groups.rows, np.where(closing, closings, left))

    def ends_keys(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        return self._closing(rows)

    def _closing(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        closing = np.ones(rows.num_rows, np.bool_)
        for name, value in self._closed_by:
            closing &= equal_to(rows.column(name), value)
        return closing
