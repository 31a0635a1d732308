"""LargeKeys: the updates of one hash that are too many to be held at once, in pieces of whole rows.

Rows of one hash are sorted, so the runs can be cut at the same rows. Each piece has all updates of its rows, which are
added up first: equal rows are one row then, beside the updates above ``since``. A tombstone deletes rows of all pieces,
so each piece is added up with the tombstones of all.

Folding
    A rule needs the same rows of two parts as of both together. So the pieces are taken one after the other, and of
    those before only the needed rows are held. Of the keys of a rule of ``whole_keys`` all rows are held once they are
    added up.

Memory
    A piece has about twice ``piece_bytes`` at most, unless one row has more. The caller limits the bytes held beside
    it: beyond them :class:`TooLarge` says how many there were. The parts are views of the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .deletes import living, settled
from .folding import compacted
from .rules import Rule
from .runs import DELETE, Layout, Updates

COPIES = 3
"""Held while rows are added: the piece, its sum, and its order."""

MAX_PROBED_ROWS = 64
PROBED_BYTES = 1 << 20
"""So many rows or bytes are compared at once with another row."""


class TooLarge(Exception):
    """More than ``limit_bytes`` would be held; ``size_bytes`` are needed, as far as is known."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"{size_bytes} bytes are needed at once")
        self.size_bytes = size_bytes


def pieces(
    layout: Layout,
    runs: Sequence[Sequence[Updates]],
    since: int,
    upto: int,
    piece_bytes: int,
) -> Iterator[Updates]:
    """The updates of one hash up to version ``upto``, ascending, each row in one piece; versions up to ``since`` count
    as one. Updates deleted at ``since`` are left out, by tombstones of any piece; later tombstones come in their order.

    Args:
        runs: of each run its parts, which follow each other.
    """
    tombstones = Updates.joined(
        layout,
        [
            part.where((part.diffs == DELETE) & (part.versions <= upto))
            for parts in runs
            for part in parts
            if part.tombstones
        ],
    )
    cursors = [_Cursor(layout, parts) for parts in runs]
    wanted_bytes = piece_bytes
    while cursors := [cursor for cursor in cursors if cursor.left]:
        # Runs that have other rows than each other contribute one after the other, others together.
        last = _with_marks(layout, [cursor.wanted(wanted_bytes) for cursor in cursors]).slice(0, 1)
        if sum(cursor.look_to(last) for cursor in cursors) > 2 * piece_bytes and wanted_bytes > 1:
            wanted_bytes //= 2
            continue
        wanted_bytes = min(piece_bytes, 2 * wanted_bytes)
        taken = [
            _added_up(part.where(part.versions <= upto), tombstones, since)
            for cursor in cursors
            for part in cursor.take()
        ]
        yield _added_up(Updates.joined(layout, taken), tombstones, since)


def _added_up(piece: Updates, tombstones: Updates, since: int) -> Updates:
    """The sum of a piece, of which these are all tombstones of its keys, also those in other pieces."""
    if not len(tombstones):
        return compacted(piece, since, Rule())[0]
    rows = Updates.joined(piece.layout, [living(piece)[0], tombstones])
    # A key's tombstones are equal rows, so they are in one piece.
    stay = settled(piece, since)[1]
    return Updates.joined(piece.layout, [living(compacted(rows, since, Rule())[0])[0], stay])


def folded(
    layout: Layout,
    runs: Sequence[Sequence[Updates]],
    since: int,
    upto: int,
    rule: Rule,
    *,
    piece_bytes: int,
    limit_bytes: int,
) -> Updates:
    """The updates that stand for all of one hash at the versions from ``since`` to ``upto``. Raises TooLarge. ``runs``:
    all that have updates of this hash.
    """
    rule = Rule() if rule.whole_keys else rule
    held = Updates.empty(layout)
    for piece in pieces(layout, runs, since, upto, piece_bytes):
        held = compacted(Updates.joined(layout, [held, piece]), since, rule)[0]
        if COPIES * held.size_bytes > limit_bytes:
            raise TooLarge(2 * COPIES * held.size_bytes)
    return held


class _Cursor:
    """A place in the parts of one run."""

    def __init__(self, layout: Layout, parts: Sequence[Updates]) -> None:
        self._layout = layout
        self._parts = [part for part in parts if len(part)]
        self._seen: list[Updates] = []
        self._rest: list[Updates] = []

    @property
    def left(self) -> bool:
        return bool(self._parts)

    def wanted(self, size_bytes: int) -> Updates:
        """The last row of the next so many bytes, or of the part."""
        part = self._parts[0]
        rows = min(len(part), max(1, len(part) * size_bytes // max(1, part.size_bytes)))
        return part.slice(rows - 1, rows)

    def look_to(self, last: Updates) -> int:
        """See all up to this row, it included; how many bytes these are."""
        self._seen, self._rest = [], []
        for number, part in enumerate(self._parts):
            end = self._end(part, last)
            self._seen += [part.slice(0, end)] if end else []
            if end < len(part):
                self._rest = [part.slice(end, len(part)), *self._parts[number + 1 :]]
                break
        return sum(part.size_bytes for part in self._seen)

    def take(self) -> list[Updates]:
        """Go on behind the rows seen last, which are given."""
        self._parts = self._rest
        return self._seen

    def _end(self, part: Updates, last: Updates) -> int:
        """How many rows of the part are not above this one."""
        fan_out = min(MAX_PROBED_ROWS, max(2, PROBED_BYTES * len(part) // max(1, part.size_bytes)))
        low, high = 0, len(part)
        while low < high:
            probed = np.unique(np.append(np.arange(low, high, -(-(high - low) // fan_out)), high - 1))
            both = _with_marks(self._layout, [part.take(probed), last])
            below = int(np.argmax(both.versions))  # equal rows are in the order of their marks
            if below == len(probed):
                return high
            low, high = int(probed[below - 1]) + 1 if below else low, int(probed[below])
        return low


def _with_marks(layout: Layout, parts: Sequence[Updates]) -> Updates:
    """The parts' updates in order, each with its part's number as its version."""
    return Updates.joined(
        layout,
        [
            Updates(layout, part.rows, part.hashes, np.full(len(part), number), part.diffs)
            for number, part in enumerate(parts)
        ],
    )
