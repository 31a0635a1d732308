"""LargeKeys: the updates of one hash that are too many to be held at once, in pieces of whole rows.

Rows of one hash are sorted, so the runs can be cut at the same rows: in halves, until each is small. Each piece has all
updates of its rows, which are added up first: equal rows are one row then, beside the updates above ``since``. A
tombstone deletes rows of all pieces, so each piece is added up with the tombstones of all.

Rules
    A rule learns what other pieces have by sums (``rules.ranked``). So :func:`in_pieces` shows it all pieces a few
    times; no more than one piece is held.

Memory
    A piece has ``piece_bytes`` at most, unless one row has more, and is held about three times while it is
    added up: itself, its sum, and its order. The parts are views of the runs. All tombstones of the hash are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from .deletes import living, undeleted
from .folding import PieceTotals, compacted
from .rules import Rule
from .runs import DELETE, Layout, Updates

MAX_PROBED_ROWS = 64
PROBED_BYTES = 1 << 20
"""So many rows or bytes are compared at once with another row."""


T = TypeVar("T")


def in_pieces(
    pieces: Callable[[], Iterator[Updates]], rounds: int, of_piece: Callable[[Updates, PieceTotals | None], T]
) -> Iterator[T | None]:
    """What ``of_piece`` makes of each piece, and None before that for each one that a rule was shown to know the
    totals.

    Args:
        rounds: of the rule.
    """
    totals = PieceTotals() if rounds else None
    for left in range(rounds, -1, -1):
        if totals is not None:
            totals.begin_round()
        for piece in pieces():
            result = of_piece(piece, totals)
            yield None if left else result


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
        runs: of each run its parts.
    """
    tombstones = tombstones_of(layout, runs, upto)
    left = [[part for parts in runs for part in parts if len(part)]]
    while left:
        parts = left.pop()
        if sum(part.size_bytes for part in parts) > piece_bytes:
            halves = _halves(layout, parts)
            if halves is not None:
                left += halves
                continue
        updates = Updates.joined(layout, [part.where(part.versions <= upto) for part in parts])
        yield _added_up(updates, tombstones, since)


def _halves(layout: Layout, parts: list[Updates]) -> tuple[list[Updates], list[Updates]] | None:
    """What lies above a row, and the other rows; None if all are equal."""
    for part in sorted(parts, key=lambda part: -part.size_bytes):
        for row in (len(part) // 2, 0):
            ends = [rows_upto(layout, each, part.slice(row, row + 1)) for each in parts]
            cut = list(zip(parts, ends, strict=True))
            above = [each.slice(end, len(each)) for each, end in cut if end < len(each)]
            if above:
                return above, [each.slice(0, end) for each, end in cut if end]
    return None


def tombstones_of(layout: Layout, runs: Sequence[Sequence[Updates]], upto: int) -> Updates:
    """The tombstones up to a version."""
    return Updates.joined(
        layout,
        [
            part.where((part.diffs == DELETE) & (part.versions <= upto))
            for parts in runs
            for part in parts
            if part.tombstones
        ],
    )


def _added_up(piece: Updates, tombstones: Updates, since: int) -> Updates:
    """The sum of a piece, of which these are all tombstones of its keys, also those in other pieces."""
    if not len(tombstones):
        return compacted(piece, since, Rule())[0]
    rows = Updates.joined(piece.layout, [living(piece)[0], tombstones])
    # A key's tombstones are equal rows, so they are in one piece.
    stay = undeleted(piece, since)[1]
    return Updates.joined(piece.layout, [living(compacted(rows, since, Rule())[0])[0], stay])


def rows_upto(layout: Layout, part: Updates, last: Updates) -> int:
    """How many rows of a sorted part of one hash are not above this row."""
    fan_out = min(MAX_PROBED_ROWS, max(2, PROBED_BYTES * len(part) // max(1, part.size_bytes)))
    low, high = 0, len(part)
    while low < high:
        probed = np.unique(np.append(np.arange(low, high, -(-(high - low) // fan_out)), high - 1))
        both = _with_marks(layout, [part.take(probed), last])
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
