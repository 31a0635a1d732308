"""Folding: the rows that sorted updates of whole keys amount to at a version, and the updates that compaction leaves of
them. Pure functions over :class:`~flight_server.kinds.changelog.runs.Updates`; they run in threads.

Begun folds
    From the moment when a fold begins its keys read as folded (``views``). Else a reader would see a row that the rule
    leaves out, if a commit that comes while the fold works retracts the rows above it; and see it no more once the fold
    is published. A fold that is given up, or that a crash ends, is begun again, before any other: versions that were
    committed behind its beginning have it in the records.

Large keys
    The updates of one hash may be too many to be held at once. They are sorted by row, so all runs can be cut at the
    same rows: in halves, until each piece is small (:func:`pieces`). Each has all updates of its rows, and all
    tombstones of the hash, which delete rows of any piece. :func:`in_pieces` shows a rule all of them a few times and
    holds one. A function with ``totals`` takes such a piece.

Deletes
    A tombstone deletes the updates of its key whose versions are below its own, also retractions that wait for their
    rows. Later updates count anew. So an update counts from its version on, until the next tombstone of its key.

    A tombstone is an update whose diff is ``DELETE``. Its row has the key; the other columns are null, also where the
    schema declares them without nulls, so neither a rule nor a reader may get it: :func:`living` takes it out. A fold
    sees whole keys, so deleted updates go with the tombstones up to ``since``. Rows that a rule has put together before
    a tombstone stay emitted: :func:`lifetimes` gives the updates so that no part has a tombstone between its first and
    its last update of a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.records import BegunFold

from .rules import Counts, Groups, Kept, Rule
from .runs import DELETE, Layout, Numbers, Updates, rows_at

MAX_PROBED_ROWS = 64
PROBED_BYTES = 1 << 20
"""So many rows or bytes are compared at once with another row."""

T = TypeVar("T")

_NEVER = np.iinfo(np.int64).max


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
    totals: PieceTotals | None = None

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
        return Groups(self.rows, self.keys, counts, None if self.totals is None else self.totals.ask)


class PieceTotals:
    """Sums over the keys of a hash that comes in pieces, one behind the other, several times: in rounds.

    A rule learns about other rows of a key only by sums over the key and over its rows up to one. It asks the same of
    each piece, one sum after the other. What it asks of the second round may depend on totals of the first one, and so
    on; after ``Rule.rounds`` of them all totals are right.
    """

    def __init__(self) -> None:
        self._before: Counter[tuple[int, int]] = (
            Counter()
        )  # of this round's earlier pieces, by question and key
        self.begin_round()

    def begin_round(self) -> None:
        self._totals, self._before = self._before, Counter()
        self._first = self._last = self._question = 0
        self._end: list[Updates] = []  # the last row of the piece before

    def begin(self, piece: Updates) -> None:
        """The next piece has these updates, which are no tombstones."""
        border = Updates.in_order(piece.layout, [*self._end, piece.slice(0, 1)])
        self._first = self._last + len(border.key_starts) - 1 if self._end else 0
        self._last = self._first + len(piece.key_starts) - 1
        self._question = 0
        self._end = [piece.slice(len(piece) - 1, len(piece))]

    def ask(self, sums: Counts) -> tuple[Counts, Counts]:
        """See :class:`Groups`."""
        totals, before = sums.copy(), np.zeros_like(sums)
        for place in {0, len(sums) - 1}:
            at = self._question, self._first + place
            totals[place], before[place] = self._totals[at], self._before[at]
            self._before[at] += int(sums[place])
        self._question += 1
        return totals, before


def shown(
    updates: Updates, after: int | None, upto: int, rule: Rule, totals: PieceTotals | None = None
) -> Kept:
    """The rows that the rule keeps at the version ``upto`` or, if ``after`` is not None, those whose count differs
    between the two versions, and by how much.
    """
    distinct = Distinct.of(updates, totals)
    now = rule.kept(distinct.groups(distinct.counts(upto)))
    if after is None:
        return now
    changes = now.counts - rule.kept(distinct.groups(distinct.counts(after))).counts
    (differ,) = changes.nonzero()
    return Kept(rows_at(distinct.rows, differ), changes[differ])


def copies(kept: Kept, start: int, max_rows: int) -> tuple[pa.RecordBatch, bool]:
    """The rows, each as often as it is there, from the row ``start`` on; and whether more follow: at most ``max_rows``
    are given if one is there more than once.
    """
    if not start and (kept.counts == 1).all():
        return kept.rows, False
    ends = np.cumsum(kept.counts)
    places = np.arange(start, min(start + max_rows, int(ends[-1])))
    return kept.rows.take(pa.array(np.searchsorted(ends, places, "right"))), start + max_rows < int(ends[-1])


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


def compacted(updates: Updates, since: int, rule: Rule, totals: PieceTotals | None = None) -> Updates:
    """The updates that stand for these at every version from ``since`` on: those above it, and one for each row that
    the rule needs.
    """
    rows, ends = living(updates)
    tombstones = updates.where((updates.diffs == DELETE) & (updates.versions > since))
    distinct = Distinct.of(added_up(rows if ends is None else rows.where(ends > since)), totals)
    versions, diffs = distinct.updates.versions, distinct.updates.diffs
    if not len(versions):
        return tombstones
    old = versions <= since
    counts = distinct.summed(np.where(old, diffs, 0))
    later = -np.abs(diffs) if rule.any_update_counts else np.minimum(diffs, 0)
    retracted = distinct.summed(np.where(old, 0, later))
    needed = rule.needed(distinct.groups(counts), retracted).counts
    left = np.flatnonzero(needed)
    # The first update of a row stands for all up to ``since``.
    latest = np.maximum.reduceat(np.where(old, versions, 0), distinct.firsts)
    stays, first = ~old, distinct.firsts[left]
    versions, diffs = versions.copy(), diffs.copy()
    stays[first], versions[first], diffs[first] = True, latest[left], needed[left]
    kept = Updates(updates.layout, distinct.updates.rows, distinct.updates.hashes, versions, diffs)
    return Updates.joined(updates.layout, [kept.where(stays), tombstones])


def folded(fold: BegunFold, rule: Rule, updates: Updates, totals: PieceTotals | None = None) -> Updates:
    """What a fold leaves of its keys, of which these are all updates, and what came later."""
    known = updates.versions <= fold.upto
    left = compacted(updates.where(known), fold.since, rule, totals)
    return Updates.joined(updates.layout, [left, updates.where(~known)])


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


# Deletes


def tombstones(layout: Layout, batches: Sequence[pa.RecordBatch], dataset: str) -> Updates:
    """Sorted tombstones of the keys in these batches, with version 0, one for each key.

    Raises BadFrame: see :meth:`Layout.check_nulls`.
    """
    keys = pa.concat_batches([layout.rows(batch, layout.key_schema) for batch in batches])
    layout.check_nulls(keys, dataset)
    count, key = keys.num_rows, set(layout.key)
    columns = [
        keys.column(field.name) if number in key else pa.nulls(count, field.type)
        for number, field in enumerate(layout.schema)
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=layout.schema)
    updates = Updates.of(layout, rows, np.zeros(count, np.int64), np.full(count, DELETE))
    return updates if len(updates.key_starts) == count else updates.take(updates.key_starts)


def living(updates: Updates) -> tuple[Updates, Numbers | None]:
    """The updates without tombstones; and for each the version at which it is deleted, greater than every version if it
    is not. None if there is no tombstone.
    """
    if not updates.tombstones:
        return updates, None
    keys, order = _by_time(updates)
    deletes, versions = updates.diffs[order] == DELETE, updates.versions[order]
    places = np.where(deletes, np.arange(len(order)), len(order) - 1)
    following = np.minimum.accumulate(places[::-1])[::-1]
    deleted = deletes[following] & (keys[following] == keys)
    ends = np.empty(len(order), np.int64)
    ends[order] = np.where(deleted, versions[following], _NEVER)
    rows = np.flatnonzero(updates.diffs != DELETE)
    return updates.take(rows), ends[rows]


def lifetimes(updates: Updates, after: int, upto: int) -> Iterator[Updates]:
    """The updates that count at a version from ``after`` to ``upto``, without tombstones, in parts: of each part and
    key no update is deleted in between that another one survives.
    """
    rows, ends = living(updates)
    if ends is None:
        yield updates
        return
    keys, order = _by_time(updates)
    passed = np.cumsum((updates.diffs[order] == DELETE) & (updates.versions[order] <= upto))
    total = passed[np.append(updates.key_starts[1:], len(updates)) - 1][keys]
    later = np.empty(len(order), np.int64)
    later[order] = total - passed
    later = later[updates.diffs != DELETE]
    later[ends <= after] = -1
    for number in range(int(later.max(initial=-1)) + 1):
        yield rows.where(later == number)


def _by_time(updates: Updates) -> tuple[Numbers, Numbers]:
    """For each update the number of its key; and the places of the updates by key and version, a tombstone before the
    others of its version.
    """
    keys = np.zeros(len(updates), np.int64)
    keys[updates.key_starts[1:]] = 1
    keys = np.cumsum(keys)
    return keys, np.lexsort((updates.diffs != DELETE, updates.versions, keys))


# Large keys


def in_pieces(
    pieces: Callable[[], Iterator[Updates]], rounds: int, of_piece: Callable[[Updates, PieceTotals | None], T]
) -> Iterator[T | None]:
    """What ``of_piece`` makes of each piece, and None before that for each one that a rule was shown to know the
    totals. ``rounds``: of the rule.
    """
    totals = PieceTotals() if rounds else None
    for left in range(rounds, -1, -1):
        if totals is not None:
            totals.begin_round()
        for piece in pieces():
            result = of_piece(piece, totals)
            yield None if left else result


def pieces(layout: Layout, parts: Sequence[Updates], piece_bytes: int) -> Iterator[Updates]:
    """The updates of sorted parts, ascending, each row in one piece. A piece has ``piece_bytes`` at most, unless one
    row has more.
    """
    left = [[part for part in parts if len(part)]]
    while left:
        parts = left.pop()
        halves = _halves(layout, parts) if sum(part.size_bytes for part in parts) > piece_bytes else None
        if halves is None:
            yield Updates.joined(layout, parts)
        else:
            left += halves


def rule_pieces(layout: Layout, parts: Sequence[Updates], piece_bytes: int, upto: int) -> Iterator[Updates]:
    """The same of one hash, as a rule takes them: without versions above ``upto``, each with all tombstones."""
    dead = [part.where((part.diffs == DELETE) & (part.versions <= upto)) for part in parts if part.tombstones]
    tombstones = Updates.joined(layout, dead)
    for piece in pieces(layout, parts, piece_bytes):
        rows = piece.where((piece.diffs != DELETE) & (piece.versions <= upto))
        yield Updates.joined(layout, [rows, tombstones])


def _halves(layout: Layout, parts: Sequence[Updates]) -> tuple[list[Updates], list[Updates]] | None:
    """What lies above a row, and the other rows; None if all are equal."""
    for part in sorted(parts, key=lambda part: -part.size_bytes):
        for row in (len(part) // 2, 0):
            ends = [_rows_upto(layout, each, part.slice(row, row + 1)) for each in parts]
            cut = list(zip(parts, ends, strict=True))
            above = [each.slice(end, len(each)) for each, end in cut if end < len(each)]
            if above:
                return above, [each.slice(0, end) for each, end in cut if end]
    return None


def _rows_upto(layout: Layout, part: Updates, last: Updates) -> int:
    """How many rows of a sorted part of one hash are not above this row."""
    fan_out = min(MAX_PROBED_ROWS, max(2, PROBED_BYTES * len(part) // max(1, part.size_bytes)))
    low, high = 0, len(part)
    while low < high:
        probed = np.unique(np.append(np.arange(low, high, -(-(high - low) // fan_out)), high - 1))
        # Equal rows are in the order of their versions.
        marked = [
            replace(part.take(probed), versions=np.zeros(len(probed), np.int64)),
            replace(last, versions=np.ones(1, np.int64)),
        ]
        below = int(np.argmax(Updates.joined(layout, marked).versions))
        if below == len(probed):
            return high
        low, high = int(probed[below - 1]) + 1 if below else low, int(probed[below])
    return low
