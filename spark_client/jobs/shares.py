"""Which partitions each reading task reads, one after the other.

Guarantee: every frame of every partition is in exactly one share, and shares are in the partitions' order, so a
result's rows come in the order in which Spark would give them, where one server holds the partitions. A task calls its
stages once for each partition of its share, as Spark's task for that partition would, or once for each piece of a cut
one.

How many
    A Spark task with a Python stage costs 10 to 35 ms before it has read a row. So there are as many tasks as cores,
    or the next multiple of them that leaves at most ``TASK_BYTES`` of stored data for each, and never more than
    partitions and pieces. Shares are of about equal size. Small ones cannot be balanced while they run: where a
    function computes long on few rows, :meth:`~spark_client.pipeline.Pipeline.repartition` takes the number of tasks.

Skew
    Partitions far over the median are cut into pieces that several tasks read; the pieces have each frame once, in
    order (the server's action ``plan``). Which stages allow it is the caller's to know; here is where it pays: for a
    partition of more than one and a half times ``TASK_BYTES`` and more than four times the median, empty ones counted,
    in pieces of about ``TASK_BYTES``. The only partition of a dataset is its median, and is never cut.

Pairs
    Where the same partitions of two datasets are read together, one side is cut, and each piece reads the whole other
    side. So there are fewer pieces where that side is large: the bytes read more than once are never more than the cut
    side, and with fewer than ``LEAST_PIECES`` nothing is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .sealed import SealedDataset

TASK_BYTES = 64 << 20
_PARTITION_BYTES = 64 << 10
"""The cost of a partition beside its data, so that empty ones are shared out, too."""
LEAST_PIECES = 3


class PartitionSlice(NamedTuple):
    """The frames from ``first`` to before ``until`` of a partition, as the source's ``plan`` numbers them; ``until``
    None: the whole partition. ``side`` is the side of a pair that has these frames; the other one is read whole.
    """

    partition: int
    first: int = 0
    until: int | None = None
    side: str = ""


class Cut(NamedTuple):
    """A partition in pieces: piece ``i`` has the frames from ``borders[i]`` to before ``borders[i + 1]``, and its task
    reads ``piece_bytes[i]``.
    """

    partition: int
    borders: tuple[int, ...]
    piece_bytes: tuple[int, ...]
    side: str = ""


@dataclass(frozen=True)
class Shares:
    """Task ``i`` reads the units from ``bounds[i]`` to before ``bounds[i + 1]``. A unit is a partition, or a piece of
    one of ``cuts``, which are in the partitions' order.
    """

    bounds: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, task: int) -> list[PartitionSlice]:
        return [self._piece(unit) for unit in range(self.bounds[task], self.bounds[task + 1])]

    def _piece(self, unit: int) -> PartitionSlice:
        more = 0  # units than partitions so far
        for partition, borders, _, side in self.cuts:
            number = unit - partition - more
            if number < 0:
                break
            if number < len(borders) - 1:
                return PartitionSlice(partition, borders[number], borders[number + 1], side)
            more += len(borders) - 2
        return PartitionSlice(unit - more)

    @classmethod
    def each(cls, parts: int) -> Shares:
        return cls(tuple(range(parts + 1)))

    @classmethod
    def equal(cls, partition_bytes: Sequence[int], tasks: int, cuts: Sequence[Cut] = ()) -> Shares:
        """At most ``tasks`` shares of about equal size, each of one partition, one piece, or more."""
        sizes: list[int] = []
        done = 0
        for cut in cuts:
            sizes += [*partition_bytes[done : cut.partition], *cut.piece_bytes]
            done = cut.partition + 1
        sizes += partition_bytes[done:]
        units = len(sizes)
        tasks = min(tasks, units)
        ends = np.cumsum(np.asarray(sizes, np.int64) + _PARTITION_BYTES)
        ideal_ends = ends[-1] * np.arange(1, tasks) / tasks
        # The end of a share is the unit's end that is nearest to where it should be.
        nearest = np.searchsorted((ends[:-1] + ends[1:]) / 2, ideal_ends) + 1
        bounds = [0]
        for task, end in enumerate(nearest.tolist(), 1):
            bounds.append(min(max(end, bounds[-1] + 1), units - tasks + task))
        return cls((*bounds, units), tuple(cuts))


NO_SHARES = Shares((0,))


def tasks_for(partition_bytes: Sequence[int], cores: int) -> int:
    """How many tasks the data and the cores pay for."""
    return cores * max(1, -(-sum(partition_bytes) // (TASK_BYTES * cores)))


def skewed(partition_bytes: Sequence[int]) -> list[int]:
    """The partitions that are worth a cut."""
    sizes = np.asarray(partition_bytes, np.int64)
    median = np.partition(sizes, (len(sizes) - 1) // 2)[(len(sizes) - 1) // 2]
    return np.flatnonzero(sizes > max(TASK_BYTES * 3 // 2, 4 * int(median))).tolist()


def cuts_of(sealed: SealedDataset) -> list[Cut]:
    """The cuts of one dataset's partitions. Asks the servers if there are any; raises as ``Server.action``."""
    partitions = skewed(sealed.partition_bytes)
    return list(_cuts(sealed, dict.fromkeys(partitions, 0))) if partitions else []


def cuts_of_pair(left: SealedDataset, right: SealedDataset, sides: Collection[str]) -> list[Cut]:
    """The cuts of partitions that are read side by side, of those ``sides`` that may be cut. Raises as
    :func:`cuts_of`.
    """
    both = {"left": left, "right": right}
    total = [one + other for one, other in zip(left.partition_bytes, right.partition_bytes, strict=True)]
    most: dict[str, dict[int, int]] = {"left": {}, "right": {}}
    for partition in skewed(total):
        for side in sorted(sides, key=lambda side: -both[side].partition_bytes[partition]):
            size_bytes = both[side].partition_bytes[partition]
            pieces = pieces_beside(size_bytes, total[partition] - size_bytes)
            if pieces:
                most[side][partition] = pieces
                break
    cuts = [
        Cut(cut.partition, cut.borders, _with_other(cut, total), side)
        for side, partitions in most.items()
        if partitions
        for cut in _cuts(both[side], partitions)
    ]
    return sorted(cuts)


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
        shares = -(-sum(size_bytes for _, _, size_bytes in pieces) // TASK_BYTES)
        joined = joined_pieces(pieces, most[partition] or max(1, shares))
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
