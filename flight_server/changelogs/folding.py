"""Folding: what sorted updates of whole keys amount to at a version, and what compaction leaves of them.

Pure functions over :class:`~flight_server.runs.Updates`; they run in threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.rules import Emitting, Groups, Kept, Rule
from flight_server.runs import Layout, Updates

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Distinct:
    """The distinct rows of updates, in their order.

    Args:
        firsts: int64, the index of each row's first update.
        keys: int64, the index of each key's first row.
    """

    updates: Updates
    rows: pa.RecordBatch
    firsts: Numbers
    keys: Numbers

    @classmethod
    def of(cls, updates: Updates) -> Distinct:
        firsts = updates.row_starts
        rows = updates.rows if len(firsts) == len(updates) else updates.rows.take(pa.array(firsts))
        return cls(updates, rows, firsts, np.searchsorted(firsts, updates.key_starts))

    def summed(self, numbers: Numbers) -> Numbers:
        """The sum of each row's updates' numbers."""
        return np.add.reduceat(numbers, self.firsts) if len(self.firsts) else np.zeros(0, np.int64)

    def counts(self, version: int) -> Numbers:
        """How often each row is there at a version."""
        diffs, versions = self.updates.diffs, self.updates.versions
        return self.summed(np.where(versions <= version, diffs, 0))

    def groups(self, counts: Numbers) -> Groups:
        return Groups(self.rows, self.keys, counts)


def snapshot(
    updates: Updates, version: int, rule: Rule, start: int, max_rows: int
) -> tuple[pa.RecordBatch, bool]:
    """The rows that the rule keeps at a version, each as often as it is there, from the row ``start`` on; and whether
    more follow: at most ``max_rows`` are given if one is there more than once. The updates hold whole keys.
    """
    distinct = Distinct.of(updates)
    kept = rule.kept(distinct.groups(distinct.counts(version)))
    if (kept.counts == 1).all():
        return kept.rows, False
    rows, counts = kept.rows, kept.counts
    if rows is not distinct.rows and counts.sum() > max_rows:
        # A rule that makes rows may make them in another order the next time.
        ordered = Updates.of(updates.layout, rows, np.zeros(len(counts), np.int64), counts)
        rows, counts = ordered.rows, ordered.diffs
    ends = np.cumsum(counts)
    places = np.arange(start, min(start + max_rows, int(ends[-1])))
    return rows.take(pa.array(np.searchsorted(ends, places, "right"))), start + max_rows < int(ends[-1])


def deltas(updates: Updates, after: int, upto: int, rule: Rule) -> Kept:
    """The rows whose count in the kept collection differs between two versions, and by how much."""
    distinct = Distinct.of(updates)
    before = rule.kept(distinct.groups(distinct.counts(after)))
    now = rule.kept(distinct.groups(distinct.counts(upto)))
    if before.rows is now.rows:
        changes = Kept(now.rows, now.counts - before.counts)
    else:
        layout = updates.layout
        rows = pa.concat_batches([before.rows, now.rows])
        both = Updates.of(
            layout, rows, np.zeros(rows.num_rows, np.int64), np.concatenate([-before.counts, now.counts])
        )
        changed = Distinct.of(both)
        changes = Kept(changed.rows, changed.summed(both.diffs))
    differ = np.flatnonzero(changes.counts)
    if len(differ) == len(changes.counts):
        return changes
    return Kept(changes.rows.take(pa.array(differ)), changes.counts[differ])


def emitted(updates: Updates, after: int, upto: int, rule: Emitting, layout: Layout) -> Updates:
    """How what the rule puts together differs between two versions, as updates of that layout, with version 0."""
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


def compacted(updates: Updates, since: int, rule: Rule, untouched: Hashes) -> Updates:
    """The updates that stand for these at every version from ``since`` on.

    Args:
        untouched: sorted hashes of keys to which the rule must not be applied: its updates are only added up.
    """
    updates = _added_up(updates)
    if not len(updates):
        return updates
    distinct = Distinct.of(updates)
    versions, diffs = updates.versions, updates.diffs
    old = versions <= since
    counts = distinct.summed(np.where(old, diffs, 0))
    later = distinct.summed(np.where(~old & (diffs < 0), diffs, 0))
    latest = np.maximum.reduceat(np.where(old, versions, 0), distinct.firsts)
    hashes = updates.hashes[distinct.firsts]
    kept = _needed(distinct, counts, later, rule, untouched)
    layout = updates.layout
    if kept.rows is distinct.rows:
        left = np.flatnonzero(kept.counts)
        base = Updates(layout, kept.rows.take(pa.array(left)), hashes[left], latest[left], kept.counts[left])
    else:
        left = np.flatnonzero(kept.counts)
        rows = kept.rows.take(pa.array(left))
        base = Updates.of(layout, rows, np.full(len(left), since, np.int64), kept.counts[left])
    return Updates.joined(layout, [base, updates.where(~old)])


def _needed(distinct: Distinct, counts: Numbers, later: Numbers, rule: Rule, untouched: Hashes) -> Kept:
    if not len(untouched):
        return rule.needed(distinct.groups(counts), later)
    hashes = distinct.updates.hashes[distinct.firsts]
    stays = np.isin(hashes, untouched)
    if stays.all():
        return Kept(distinct.rows, counts)
    # Keys of one hash stay or go together, so each group of the others is whole.
    others = np.flatnonzero(~stays)
    first_of_key = np.zeros(len(hashes), np.bool_)
    first_of_key[distinct.keys] = True
    groups = Groups(
        distinct.rows.take(pa.array(others)), np.flatnonzero(first_of_key[others]), counts[others]
    )
    kept = rule.needed(groups, later[others])
    if kept.rows is groups.rows:
        counts = counts.copy()
        counts[others] = kept.counts
        return Kept(distinct.rows, counts)
    places = np.flatnonzero(stays)
    rows = pa.concat_batches([distinct.rows.take(pa.array(places)), kept.rows])
    return Kept(rows, np.concatenate([counts[places], kept.counts]))


def _added_up(updates: Updates) -> Updates:
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
    taken = updates.take(firsts[left])
    return Updates(taken.layout, taken.rows, taken.hashes, taken.versions, sums[left])
