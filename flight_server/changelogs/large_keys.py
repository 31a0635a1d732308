"""LargeKeys: the updates of one hash that are too many to be held at once, in pieces of whole rows.

Rows of one hash are sorted, so the runs can be cut at the same rows. Each piece has all updates of its rows, which are
added up first: equal rows are one row then, with what is above ``since``.

Folding
    What a rule needs of some rows and of others is what it needs of both together, for a rule whose ``in_parts`` says
    so. So the pieces are taken one after the other, and of those before only what is needed is held. Of other rules'
    keys all rows are held once they are added up.

Memory
    A piece has about twice ``piece_bytes`` at most, unless one row has more. What is held beside it is limited by
    the caller: beyond it :class:`TooLarge` says how much there was. The parts are views of the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flight_server.rules import EveryRow, Rule
from flight_server.runs import Layout, Updates

from .folding import compacted

COPIES = 3
"""What is held while it is added to: itself, what it becomes, and its order."""

MAX_PROBED_ROWS = 64
PROBED_BYTES = 1 << 20
"""Of so many rows or bytes at once it is found out whether they are above another one."""

_NONE = np.zeros(0, np.uint64)


class TooLarge(Exception):
    """More than ``limit_bytes`` would be held; ``size_bytes`` are needed, as far as is known."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"{size_bytes} bytes are needed at once")
        self.size_bytes = size_bytes


def pieces(
    layout: Layout, runs: Sequence[Sequence[Updates]], since: int, upto: int, piece_bytes: int
) -> Iterator[Updates]:
    """The updates of one hash up to version ``upto``, ascending, each row in one piece; versions up to ``since`` count
    as one.

    Args:
        runs: of each run its parts, which follow each other.
    """
    cursors = [_Cursor(layout, parts) for parts in runs]
    wanted_bytes = piece_bytes
    while cursors := [cursor for cursor in cursors if cursor.left]:
        # Runs that have other rows than each other contribute one after the other, others together.
        last = _marked(layout, [cursor.wanted(wanted_bytes) for cursor in cursors]).slice(0, 1)
        if sum(cursor.look_to(last) for cursor in cursors) > 2 * piece_bytes and wanted_bytes > 1:
            wanted_bytes //= 2
            continue
        wanted_bytes = min(piece_bytes, 2 * wanted_bytes)
        taken = [
            compacted(part.where(part.versions <= upto), since, EveryRow(), _NONE)
            for cursor in cursors
            for part in cursor.take()
        ]
        yield compacted(Updates.joined(layout, taken), since, EveryRow(), _NONE)


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
    """What stands for all updates of one hash at the versions from ``since`` to ``upto``. Raises TooLarge."""
    rule = rule if rule.in_parts else EveryRow()
    held = Updates.empty(layout)
    for piece in pieces(layout, runs, since, upto, piece_bytes):
        held = added(held, piece, since, rule)
        if COPIES * held.size_bytes > limit_bytes:
            raise TooLarge(2 * COPIES * held.size_bytes)
    return held


def added(held: Updates, piece: Updates, since: int, rule: Rule) -> Updates:
    """What a rule with ``in_parts`` needs of what is held and the next piece."""
    return compacted(Updates.joined(held.layout, [held, piece]), since, rule, _NONE)


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
        """Go on behind what was seen last, which is given."""
        self._parts = self._rest
        return self._seen

    def _end(self, part: Updates, last: Updates) -> int:
        """How many rows of the part are not above this one."""
        fan_out = min(MAX_PROBED_ROWS, max(2, PROBED_BYTES * len(part) // max(1, part.size_bytes)))
        low, high = 0, len(part)
        while low < high:
            probed = np.unique(np.append(np.arange(low, high, -(-(high - low) // fan_out)), high - 1))
            both = _marked(self._layout, [part.take(probed), last])
            below = int(np.argmax(both.versions))  # equal rows are in the order of their marks
            if below == len(probed):
                return high
            low, high = int(probed[below - 1]) + 1 if below else low, int(probed[below])
        return low


def _marked(layout: Layout, parts: Sequence[Updates]) -> Updates:
    """The parts' updates in order, each with its part's number as its version."""
    return Updates.joined(
        layout,
        [
            Updates(layout, part.rows, part.hashes, np.full(len(part), number), part.diffs)
            for number, part in enumerate(parts)
        ],
    )
