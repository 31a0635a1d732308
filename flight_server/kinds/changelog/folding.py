"""Folding: the rows that sorted updates of whole keys amount to at a version, and the updates that compaction leaves of
them. With ``totals`` the updates are a piece of a hash's, as ``large_keys`` gives them; else they hold whole keys.

Pure functions over :class:`~flight_server.kinds.changelog.runs.Updates`; they run in threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import unique

from .deletes import lifetimes, living, undeleted
from .rules import Groups, Kept, KeyTotals, Rule
from .runs import Layout, Updates, rows_at

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Distinct:
    """The distinct rows of updates, in their order.

    Args:
        firsts: int64, the index of each row's first update.
        keys: int64, the index of each key's first row.
        ends: int64, for each update the version at which it is deleted; None without deletes.
    """

    updates: Updates
    rows: pa.RecordBatch
    firsts: Numbers
    keys: Numbers
    ends: Numbers | None = None
    totals: KeyTotals | None = None

    @classmethod
    def of(cls, updates: Updates, totals: PieceTotals | None = None) -> Distinct:
        updates, ends = living(updates)
        firsts = updates.row_starts
        rows = rows_at(updates.rows, firsts)
        if totals is not None and len(updates):
            totals.begin(updates)
        keys = updates.key_starts
        if len(firsts) < len(updates):
            keys = np.searchsorted(firsts, keys)
        return cls(updates, rows, firsts, keys, ends, totals)

    def summed(self, numbers: Numbers | NDArray[np.bool_]) -> Numbers:
        """The sum of each row's updates' numbers."""
        if len(self.firsts) == len(numbers):
            return numbers.astype(np.int64, copy=False)
        return np.add.reduceat(numbers, self.firsts, dtype=np.int64)

    def counts(self, version: int) -> Numbers:
        diffs, versions = self.updates.diffs, self.updates.versions
        in_force = versions <= version
        if self.ends is not None:
            in_force &= version < self.ends
        return self.summed(np.where(in_force, diffs, 0))

    def groups(self, counts: Numbers) -> Groups:
        return Groups(self.rows, self.keys, counts, self.totals)


class PieceTotals(KeyTotals):
    """The totals of the pieces of one hash."""

    def __init__(self) -> None:
        super().__init__()
        self._end: Updates | None = None  # the last row of the piece before

    def begin_round(self) -> None:
        super().begin_round()
        self._end = None

    def begin(self, piece: Updates) -> None:
        """The next piece has these updates, which are no tombstones."""
        continues = False
        if self._end is not None:
            continues = len(Updates.in_order(piece.layout, [self._end, piece.slice(0, 1)]).key_starts) == 1
        self.begin_piece(len(piece.key_starts), continues=continues)
        self._end = piece.slice(len(piece) - 1, len(piece))


def kept_at(updates: Updates, version: int, rule: Rule, totals: PieceTotals | None = None) -> Kept:
    """The rows that the rule keeps at a version."""
    distinct = Distinct.of(updates, totals)
    return rule.kept(distinct.groups(distinct.counts(version)))


def copies(kept: Kept, start: int, max_rows: int) -> tuple[pa.RecordBatch, bool]:
    """The rows, each as often as it is there, from the row ``start`` on; and whether more follow: at most ``max_rows``
    are given if one is there more than once.
    """
    if not start and (kept.counts == 1).all():
        return kept.rows, False
    ends = np.cumsum(kept.counts)
    places = np.arange(start, min(start + max_rows, int(ends[-1])))
    return kept.rows.take(pa.array(np.searchsorted(ends, places, "right"))), start + max_rows < int(ends[-1])


def deltas(updates: Updates, after: int, upto: int, rule: Rule, totals: PieceTotals | None = None) -> Kept:
    """The rows whose count in the kept collection differs between two versions, and by how much."""
    distinct = Distinct.of(updates, totals)
    before = rule.kept(distinct.groups(distinct.counts(after)))
    now = rule.kept(distinct.groups(distinct.counts(upto)))
    changes = now.counts - before.counts
    (differ,) = changes.nonzero()
    return Kept(rows_at(distinct.rows, differ), changes[differ])


def emitted(updates: Updates, after: int, upto: int, rule: Rule, layout: Layout) -> Updates:
    """The difference of the rule's pairs between two versions, as updates of that layout, with version 0. Pairs that
    were made and deleted in between count.
    """
    parts = [_emitted(part, after, upto, rule, layout) for part in lifetimes(updates, after, upto)]
    return Updates.joined(layout, parts)


def _emitted(updates: Updates, after: int, upto: int, rule: Rule, layout: Layout) -> Updates:
    distinct = Distinct.of(updates)
    before = rule.paired(distinct.groups(distinct.counts(after)))
    now = rule.paired(distinct.groups(distinct.counts(upto)))
    rows = pa.concat_batches([before.rows, now.rows])
    counts = np.concatenate([-before.counts, now.counts])
    both = Distinct.of(Updates.of(layout, rows, np.zeros(len(counts), np.int64), counts))
    sums = both.summed(both.updates.diffs)
    changed = np.flatnonzero(sums)
    versions = np.zeros(len(changed), np.int64)
    hashes = both.updates.hashes[both.firsts[changed]]
    return Updates(layout, both.rows.take(pa.array(changed)), hashes, versions, sums[changed])


def compacted(
    updates: Updates, since: int, rule: Rule, totals: PieceTotals | None = None, spare: int = 0
) -> tuple[Updates, Hashes]:
    """The updates that stand for these at every version from ``since`` on: those above it, and one for each row that
    the rule needs; and the hashes of keys, sorted and unique, of which the rule left something out. ``spare``: see
    :meth:`Rule.needed`.
    """
    updates, tombstones = undeleted(updates, since)
    distinct = Distinct.of(added_up(updates), totals)
    versions, diffs = distinct.updates.versions, distinct.updates.diffs
    if not len(versions):
        return tombstones, distinct.updates.hashes
    old = versions <= since
    counts = distinct.summed(np.where(old, diffs, 0))
    later = -np.abs(diffs) if rule.any_update_counts else np.minimum(diffs, 0)
    retracted = distinct.summed(np.where(old, 0, later))
    needed = rule.needed(distinct.groups(counts), retracted, spare).counts
    left = np.flatnonzero(needed)
    # The first update of a row stands for all up to ``since``.
    latest = np.maximum.reduceat(np.where(old, versions, 0), distinct.firsts)
    stays, first = ~old, distinct.firsts[left]
    versions, diffs = versions.copy(), diffs.copy()
    stays[first], versions[first], diffs[first] = True, latest[left], needed[left]
    kept = Updates(updates.layout, distinct.updates.rows, distinct.updates.hashes, versions, diffs)
    changed = unique(distinct.updates.hashes[distinct.firsts[needed != counts]])
    return Updates.joined(updates.layout, [kept.where(stays), tombstones]), changed


def added_up(updates: Updates) -> Updates:
    """One update for each row and version, none whose diff is 0."""
    if not len(updates):
        return updates
    first = np.ones(len(updates), np.bool_)
    first[1:] = updates.versions[1:] != updates.versions[:-1]
    first[updates.row_starts] = True
    firsts = np.flatnonzero(first)
    sums = np.add.reduceat(updates.diffs, firsts)
    left = sums != 0
    if len(firsts) == len(updates) and left.all():
        return updates
    first_ones = updates.take(firsts[left])
    return replace(first_ones, diffs=sums[left])
