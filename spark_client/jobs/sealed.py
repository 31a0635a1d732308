"""A sealed dataset as the driver knows it: where it is read, its schema, and the sizes of its partitions.

Guarantee: :meth:`SealedDataset.read` gives all partitions, in order, or an error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_client.merge import DatasetRef

READ_AHEAD = 16
"""How many partitions of a result are read at once, each by a thread."""


@dataclass(frozen=True)
class SealedDataset:
    """A sealed dataset, its schema, and the stored bytes of each of its partitions, 0 without rows."""

    source: DatasetRef
    schema: pa.Schema
    partition_bytes: tuple[int, ...]

    def read(self) -> Generator[Any, None, None]:
        """The batches of all partitions, in order. Small ones are read ahead, within the memory budget."""
        for partitions in self._together():
            yield from self.source.read_each(partitions)

    def _together(self) -> Iterator[list[int]]:
        # Half: what is read ahead beyond the budget would be written to disk first. Stored bytes may be compressed.
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
