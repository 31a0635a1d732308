"""Which partitions each reading task reads, one after the other.

Guarantee: every partition is in exactly one share, and shares are in the partitions' order, so a result's rows come in
the order in which Spark would give them. A task calls its stages once for each partition of its share, as Spark's task
for that partition would.

How many
    A Spark task with a Python stage costs 10 to 35 ms before it has read a row. So there are as many tasks as cores,
    or the next multiple of them that leaves at most ``TASK_BYTES`` of stored data for each, and never more than
    partitions. Shares are of about equal size. Small ones cannot be balanced while they run: where a function computes
    long on few rows, :meth:`~spark_client.pipeline.Pipeline.exchange` takes the number of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TASK_BYTES = 128 << 20
_PARTITION_BYTES = 64 << 10
"""What a partition costs beside its data, so that empty ones are shared out, too."""


@dataclass(frozen=True)
class Shares:
    """Task ``i`` reads the parts from ``bounds[i]`` to before ``bounds[i + 1]``."""

    bounds: tuple[int, ...]

    def __len__(self) -> int:
        """The number of tasks."""
        return len(self.bounds) - 1

    def __getitem__(self, task: int) -> range:
        return range(self.bounds[task], self.bounds[task + 1])

    @classmethod
    def each(cls, parts: int) -> Shares:
        """A task for each of the parts."""
        return cls(tuple(range(parts + 1)))

    @classmethod
    def equal(cls, partition_bytes: Sequence[int], tasks: int) -> Shares:
        """At most ``tasks`` shares of about equal size, each of one partition or more."""
        partitions = len(partition_bytes)
        tasks = min(tasks, partitions)
        ends = np.cumsum(np.asarray(partition_bytes, np.int64) + _PARTITION_BYTES)
        wanted = ends[-1] * np.arange(1, tasks) / tasks
        # The end of a share is the partition's end that is nearest to where it should be.
        found = np.searchsorted((ends[:-1] + ends[1:]) / 2, wanted) + 1
        bounds = [0]
        for task, end in enumerate(found.tolist(), 1):
            bounds.append(min(max(end, bounds[-1] + 1), partitions - tasks + task))
        return cls((*bounds, partitions))


def tasks_for(partition_bytes: Sequence[int], cores: int) -> int:
    """How many tasks the data and the cores pay for."""
    return cores * max(1, -(-sum(partition_bytes) // (TASK_BYTES * cores)))
