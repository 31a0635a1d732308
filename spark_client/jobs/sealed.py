"""A sealed dataset as the driver knows it: where it is read, its schema, and the sizes of its partitions.

Guarantee: :meth:`SealedDataset.read` gives all partitions, in order, or an error.

A task that writes it reports a row to the driver: its attempt, the totals of its rows, and its work. The driver holds
one row of some hundred bytes for each task.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from spark_client.merge import DatasetRef


@dataclass
class TaskWork:
    """The work of one task, or of all tasks of a job together.

    Args:
        tasks: how many of Spark's; 0 where the driver did it.
        pieces: how many partitions, pieces of partitions, or splits of files they read; 0 for a DataFrame.
        spilled_bytes: the bytes that their stages, and the streams that they read, wrote to files of their own, for
            want of memory.
        counts: ``arrow.counts`` of the rows that they wrote, if they were asked for; empty if there were no rows,
            either.
    """

    tasks: int = 1
    pieces: int = 0
    spilled_bytes: int = 0
    counts: list[int] = field(default_factory=list)


def report(
    dataset: str, producer: int, attempt: str, answer: dict[str, Any], work: TaskWork
) -> dict[str, Any]:
    """What the task reports. ``answer`` is the server's to the commit, with the ``server`` that the task has chosen."""
    return {
        "dataset": dataset,
        "producer": producer,
        "attempt": attempt,
        "rows": answer["rows"],
        "bytes": answer["bytes"],
        "server": answer.get("server"),
        "work": [work.tasks, work.pieces, work.spilled_bytes, answer.get("counts", [])],
    }


def added(counts: Sequence[int], others: Sequence[int]) -> list[int]:
    """Their sums; either may be empty."""
    return [sum(pair) for pair in zip_longest(counts, others, fillvalue=0)]


def work_of(reports: Iterable[Any]) -> TaskWork:
    """The sum of the tasks' work."""
    done = TaskWork(tasks=0)
    for each in reports:
        tasks, pieces, spilled_bytes, counts = each["work"]
        done.tasks += tasks
        done.pieces += pieces
        done.spilled_bytes += spilled_bytes
        done.counts = added(done.counts, counts)
    return done


@dataclass(frozen=True)
class SealedDataset:
    """A sealed dataset, its schema, the stored bytes of each of its partitions, 0 without rows, and its rows and
    frames; what the tasks that wrote it did, how long the driver waited for them and the seal, the losses of servers
    after which its job ran again, and the stored bytes on each server, by location.
    """

    source: DatasetRef
    schema: pa.Schema
    partition_bytes: tuple[int, ...]
    rows: int = 0
    frames: int = 0
    work: TaskWork = field(default_factory=TaskWork)
    seconds: float = 0.0
    losses: tuple[str, ...] = ()
    servers: Mapping[str, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(self.partition_bytes)

    def read(self) -> Generator[Any, None, None]:
        """The batches of all partitions, in order. Later ones are read ahead within the memory budget."""
        filled = [partition for partition, size_bytes in enumerate(self.partition_bytes) if size_bytes]
        return self.source.read_each(filled)
