"""A sealed dataset as the driver knows it: where it is read, its schema, and the sizes of its partitions.

Guarantee: :meth:`SealedDataset.read` gives all partitions, in order, or an error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from spark_client.merge import DatasetRef

from .task_reports import TaskWork

READ_AHEAD = 16
"""How many partitions of a result are read at once, each by a thread."""


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

    @classmethod
    def of(
        cls, source: DatasetRef, totals: Mapping[str, Any], schema: pa.Schema, partitions: int, **job: Any
    ) -> Self:
        """By the server's ``totals`` (``Shuffles.seal``); ``job`` is the ``work`` and the ``seconds``."""
        sizes = totals["partition_bytes"]
        partition_bytes = tuple(sizes.get(str(partition), 0) for partition in range(partitions))
        return cls(source, schema, partition_bytes, totals["rows"], totals["frames"], **job)

    @property
    def size_bytes(self) -> int:
        return sum(self.partition_bytes)

    def read(self) -> Generator[Any, None, None]:
        """The batches of all partitions, in order. Small ones are read ahead, within the memory budget."""
        for partitions in self._together():
            yield from self.source.read_each(partitions)

    def _together(self) -> Iterator[list[int]]:
        # Half: batches read ahead beyond the budget would be written to disk first. Stored bytes may be compressed.
        room_bytes = self.source.server.reading.budget_bytes // 2
        found: list[int] = []
        total_bytes = 0
        for partition, size_bytes in enumerate(self.partition_bytes):
            if not size_bytes:
                continue
            if found and (len(found) == READ_AHEAD or total_bytes + size_bytes > room_bytes):
                yield found
                found, total_bytes = [], 0
            found.append(partition)
            total_bytes += size_bytes
        if found:
            yield found
