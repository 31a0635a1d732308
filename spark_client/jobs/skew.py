"""Partitions far over the median, cut into pieces that several tasks read.

Guarantee: the pieces of a cut partition have each of its frames once, in order (the server's action ``plan``). Which
stages allow it is the caller's to know; here is where it pays.

Which
    A partition of more than one and a half times ``TASK_BYTES`` and more than four times the median, empty ones
    counted, in pieces of about ``TASK_BYTES``. The only partition of a dataset is its median, and is never cut.

Pairs
    Where the same partitions of two datasets are read together, one side is cut, and each piece reads the whole other
    side. So there are fewer pieces where that side is large: the bytes read more than once are never more than the cut
    side, and with fewer than ``LEAST_PIECES`` nothing is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np

from .sealed import SealedDataset
from .shares import TASK_BYTES, Cut

LEAST_PIECES = 3


def skewed(partition_bytes: Sequence[int]) -> list[int]:
    """The partitions that are worth a cut."""
    sizes = np.asarray(partition_bytes, np.int64)
    median = np.partition(sizes, (len(sizes) - 1) // 2)[(len(sizes) - 1) // 2]
    return np.flatnonzero(sizes > max(TASK_BYTES * 3 // 2, 4 * int(median))).tolist()


def cuts_of(sealed: SealedDataset) -> list[Cut]:
    """The cuts of one dataset's partitions. Asks the servers if there are any; raises as ``Server.action``."""
    found = skewed(sealed.partition_bytes)
    return list(_cuts(sealed, dict.fromkeys(found, 0))) if found else []


def cuts_of_pair(left: SealedDataset, right: SealedDataset, sides: Collection[str]) -> list[Cut]:
    """The cuts of partitions that are read side by side, of those ``sides`` that may be cut. Raises as
    :func:`cuts_of`.
    """
    both = {"left": left, "right": right}
    total = [one + other for one, other in zip(left.partition_bytes, right.partition_bytes, strict=True)]
    wanted: dict[str, dict[int, int]] = {"left": {}, "right": {}}
    for partition in skewed(total):
        for side in sorted(sides, key=lambda side: -both[side].partition_bytes[partition]):
            size_bytes = both[side].partition_bytes[partition]
            pieces = pieces_beside(size_bytes, total[partition] - size_bytes)
            if pieces:
                wanted[side][partition] = pieces
                break
    found = [
        Cut(cut.partition, cut.borders, _with_other(cut, total), side)
        for side, partitions in wanted.items()
        if partitions
        for cut in _cuts(both[side], partitions)
    ]
    return sorted(found)


def pieces_beside(size_bytes: int, other_bytes: int) -> int:
    """Into how many pieces a side is cut; 0 if it does not pay."""
    if size_bytes <= 2 * TASK_BYTES:
        return 0
    pieces = min(-(-size_bytes // TASK_BYTES), 1 + size_bytes // max(1, other_bytes))
    return pieces if pieces >= LEAST_PIECES else 0


def _with_other(cut: Cut, total: Sequence[int]) -> tuple[int, ...]:
    other_bytes = total[cut.partition] - sum(cut.piece_bytes)
    return tuple(size_bytes + other_bytes for size_bytes in cut.piece_bytes)


def _cuts(sealed: SealedDataset, most: dict[int, int]) -> Iterator[Cut]:
    """The cuts of these partitions, each in at most so many pieces; 0 for as many as there are."""
    planned = sealed.source.plan(sorted(most), TASK_BYTES)
    for partition, pieces in sorted(planned.items()):
        # Over several servers each portion may be far below a task's share.
        wanted = -(-sum(size_bytes for _, _, size_bytes in pieces) // TASK_BYTES)
        joined = joined_pieces(pieces, most[partition] or max(1, wanted))
        # A single frame cannot be cut.
        if len(joined) > 1:
            borders = (joined[0][0], *(end for _, end, _ in joined))
            yield Cut(partition, borders, tuple(size_bytes for _, _, size_bytes in joined))


def joined_pieces(pieces: Sequence[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """Neighbours (first frame, end, bytes) together, so that there are at most so many, of about equal numbers."""
    count = min(most, len(pieces))
    bounds = [len(pieces) * number // count for number in range(count + 1)]
    return [
        (pieces[start][0], pieces[stop - 1][1], sum(each[2] for each in pieces[start:stop]))
        for start, stop in pairwise(bounds)
    ]
