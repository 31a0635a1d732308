"""The locations where a dataset's partitions can be read, as a value that is pickled into tasks.

Guarantee: :meth:`Readable.read` gives the whole partition of this one generation, or an error (``merge.merged``);
:meth:`SealedDataset.read` gives all of them, in order.

Only the driver asks the server: all partitions have the same locations. It also knows from the seal which partitions
have no rows: no task asks for those.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flight_server.memory import MemoryPool
from flight_server.protocol import PLAN, PlanRequest, Ticket, bulk_path
from spark_client.connection import RemoteServer
from spark_client.lanes import PartitionStream
from spark_client.merge import merge
from spark_client.spill import TaskMemory

from .worker_memory import reading_budget

READ_AHEAD = 16
"""How many partitions of a result are read at once, each by a thread."""


@dataclass(frozen=True)
class Readable:
    """One generation of a dataset. ``places`` are its endpoints' locations, without their paths; ``filled`` has a bit
    for each partition, from the lowest of the first byte on, which is 0 if it has no rows; None if that is not known.
    ``most_bytes`` bounds a merge's memory below the client's budget. ``reader`` names who reads, where retention counts
    readers: a task that is tried again under the same name is one reader.
    """

    server: RemoteServer
    dataset: str
    generation: str
    places: tuple[str, ...]
    filled: bytes | None = None
    most_bytes: int | None = None
    reader: str | None = None

    @classmethod
    def find(cls, server: RemoteServer, dataset: str, generation: str) -> Readable:
        """Ask the server for the locations.

        Raises:
            NotFound: the server has no such dataset.
        """
        return cls.of(server, dataset, generation, server.flight_info(dataset).endpoints[0])

    @classmethod
    def sealed(cls, server: RemoteServer, dataset: str, generation: str, answer: dict[str, Any]) -> Readable:
        """From the server's answer to the seal."""
        if "read_locations" not in answer:  # an older server
            return cls.find(server, dataset, generation)
        filled = bytearray()
        for partition in map(int, answer["partition_bytes"]):
            filled.extend(bytes(max(0, (partition >> 3) + 1 - len(filled))))
            filled[partition >> 3] |= 1 << (partition & 7)
        return cls(server, dataset, generation, tuple(answer["read_locations"]), bytes(filled))

    @classmethod
    def of(cls, server: RemoteServer, dataset: str, generation: str, endpoint: Any) -> Readable:
        """From the endpoint of the generation's first partition."""
        path = bulk_path(dataset, 0, generation)
        locations = (location.uri.decode() for location in endpoint.locations)
        return cls(server, dataset, generation, tuple(location.removesuffix(path) for location in locations))

    def plan(self, partitions: Sequence[int], target_bytes: int) -> dict[int, list[tuple[int, int, int]]]:
        """The pieces of these partitions, of about ``target_bytes``, each as first frame, end and stored bytes.

        Raises:
            FlightShuffleError: as ``RemoteServer.action``.
        """
        request = PlanRequest(self.dataset, target_bytes, self.generation, tuple(partitions))
        found: dict[int, list[tuple[int, int, int]]] = {}
        for partition, first, end, size_bytes in self.server.action(PLAN, request.encode())["pieces"]:
            found.setdefault(partition, []).append((first, end, size_bytes))
        return found

    def stream(self, partition: int, first: int = 0, until: int | None = None) -> PartitionStream:
        """The stream of the partition, or of its frames from ``first`` to before ``until``, not opened yet."""
        path = bulk_path(self.dataset, partition, self.generation)
        locations = [place + path if place.startswith("http") else place for place in self.places]
        # Of several pieces of a partition each has its own name: the server takes one stream of a name at a time.
        reader = None if self.reader is None else f"{self.reader}.{first}-{'' if until is None else until}"
        return PartitionStream(
            self.server,
            Ticket(self.dataset, partition, self.generation, first, reader, until=until),
            locations=locations,
            lane=self.server.reading.lane,
        )

    def read(self, partition: int, memory: TaskMemory | None = None) -> Generator[Any, None, None]:
        """The partition's batches, in order, as they arrive. At the end ``memory`` counts those that waited on disk."""
        return self.read_each([partition], memory)

    def read_frames(
        self, partition: int, first: int, until: int, memory: TaskMemory | None = None
    ) -> Generator[Any, None, None]:
        """The batches of the partition's frames from ``first`` to before ``until``, as :meth:`read`."""
        return self._merged([self.stream(partition, first, until)], memory)

    def read_each(
        self, partitions: Sequence[int], memory: TaskMemory | None = None
    ) -> Generator[Any, None, None]:
        """The batches of one or more partitions, one after the other, as :meth:`read`. All are read at once."""
        streams = [self.stream(partition) for partition in partitions if self._has_rows(partition)]
        if streams:
            yield from self._merged(streams, memory)

    def _merged(
        self, streams: Sequence[PartitionStream], memory: TaskMemory | None
    ) -> Generator[Any, None, None]:
        reading = self.server.reading
        budget_bytes = reading.budget_bytes
        if self.most_bytes is not None:
            budget_bytes = min(budget_bytes, self.most_bytes)
        pool = MemoryPool(reading_budget(budget_bytes), "merge")
        with merge(
            streams,
            pool=pool,
            scratch_dir=reading.scratch_dir,
            order="stream",
            timeouts=self.server.timeouts,
        ) as merged:
            try:
                yield from merged
            finally:
                if memory is not None:
                    memory.spilled_bytes += merged.statistics().spilled_bytes

    def _has_rows(self, partition: int) -> bool:
        filled, at = self.filled, partition >> 3
        return filled is None or (at < len(filled) and bool(filled[at] >> (partition & 7) & 1))


@dataclass(frozen=True)
class SealedDataset:
    """A sealed dataset, its schema, and the stored bytes of each of its partitions, 0 without rows."""

    source: Readable
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
