"""Which partitions each reading task reads, one after the other.

Guarantee: every frame of every partition is in exactly one share, and shares are in the partitions' order, so a
result's rows come in the order in which Spark would give them, where one server holds the partitions. A task calls its
stages once for each partition of its share, as Spark's task for that partition would, or once for each piece of a cut
one (``skew``).

How many
    A Spark task with a Python stage costs 10 to 35 ms before it has read a row. So there are as many tasks as cores,
    or the next multiple of them that leaves at most ``TASK_BYTES`` of stored data for each, and never more than
    partitions and pieces. Shares are of about equal size. Small ones cannot be balanced while they run: where a
    function computes long on few rows, :meth:`~spark_client.pipeline.Pipeline.exchange` takes the number of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

TASK_BYTES = 64 << 20
_PARTITION_BYTES = 64 << 10
"""The cost of a partition beside its data, so that empty ones are shared out, too."""


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
        """A task for each of the parts."""
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
        wanted = ends[-1] * np.arange(1, tasks) / tasks
        # The end of a share is the unit's end that is nearest to where it should be.
        found = np.searchsorted((ends[:-1] + ends[1:]) / 2, wanted) + 1
        bounds = [0]
        for task, end in enumerate(found.tolist(), 1):
            bounds.append(min(max(end, bounds[-1] + 1), units - tasks + task))
        return cls((*bounds, units), tuple(cuts))


def tasks_for(partition_bytes: Sequence[int], cores: int) -> int:
    """How many tasks the data and the cores pay for."""
    return cores * max(1, -(-sum(partition_bytes) // (TASK_BYTES * cores)))
