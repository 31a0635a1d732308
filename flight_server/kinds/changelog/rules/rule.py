"""Rule: the base of keep rules, and those of the greatest rows.

The algebra. A changelog is a multiset of rows. ``kept`` is the part of it that readers see at a version. ``needed`` is
the part that compaction leaves: after it, ``kept`` is the same as before at every version that can still be asked for,
and at every later one to which further assertions lead. Doing it twice changes nothing more.
(The idea, feeding the rows that a rule does not need back as retractions, is Frank McSherry's.)

A retraction that comes after compaction, of a row that compaction removed, leaves a count below zero, as one that comes
before its row does: the two cannot be told apart, and a count below zero stays until its row comes. A rule cannot bring
back the row that would then be the next; a longer ``delay_seconds`` can, because compaction waits for it.

Rules have no state. Threads may use one rule at the same time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .ranked import Groups, Kept, greatest, needed_of_greatest


class Rule:
    """One keep rule over rows of one schema; as it stands none: every row is shown and needed. The counts of a call sum
    to less than 2**63.
    """

    any_update_counts = False
    """Whether later updates above zero, too, may make a row needed."""
    rounds = 0
    """How often it is shown all pieces of a key (``folding.PieceTotals``) before the totals are right."""
    may_end_keys = False
    """Whether it has :meth:`ends_keys`."""
    greatest_rows: int | None = None
    """Of a key without retractions and deletes readers see at most so many of its greatest rows, and the others do not
    matter. None if others may matter.
    """
    emitted_schema: pa.Schema | None = None
    """Of the changelog that gets the rows which the rule puts together; None if there is none.

    An update emits the difference of :meth:`paired` before and after it, both over rows of one compaction: compaction
    removes pairs, which is not news for the other changelog.
    """

    def kept(self, groups: Groups) -> Kept:
        """The rows of these keys that readers see: no count is below zero."""
        return Kept(groups.rows, np.maximum(groups.counts, 0))

    def needed(self, groups: Groups, later_retractions: NDArray[np.int64]) -> Kept:
        """The rows of these keys that compaction leaves. Counts may be below zero: retractions that wait for
        assertions.

        Args:
            groups: counts are sums over all versions up to the one that compaction goes to (``since``). Rows that only
                later updates have are there with count 0.
            later_retractions: for each row the sum of its diffs below zero at later versions. If ``any_update_counts``,
                less the sum of those above zero, so below zero for each row that they change.
        """
        del later_retractions
        return Kept(groups.rows, groups.counts)

    def ends_keys(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which of these rows may make any number of rows of their key superfluous when they are put; of a rule with
        ``may_end_keys``. Others make at most one superfluous, beside their own.
        """
        raise NotImplementedError

    def paired(self, groups: Groups) -> Kept:
        """One row for each pair, in no order; of a rule with ``emitted_schema``."""
        raise NotImplementedError


class Greatest(Rule):
    """``latest`` (k = 1) and ``top_k``; see ``ranked``."""

    rounds = 1

    def __init__(self, k: int) -> None:
        self.greatest_rows = self._k = k

    def kept(self, groups: Groups) -> Kept:
        return Kept(groups.rows, greatest(groups, groups.counts, self._k))

    def needed(self, groups: Groups, later_retractions: NDArray[np.int64]) -> Kept:
        return Kept(groups.rows, needed_of_greatest(groups, groups.counts, later_retractions, self._k))
