"""The locations where a dataset's partitions can be read, as a value that is pickled into tasks.

Guarantee: :meth:`Readable.read` gives the whole partition of this one generation, or an error (``merge.merged``).

Only the driver asks the server: all partitions have the same locations. It also knows from the seal which partitions
have no rows: no task asks for those.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from flight_server.memory import MemoryPool
from flight_server.protocol import Ticket, bulk_path
from spark_client.connection import Server
from spark_client.lanes import PartitionStream
from spark_client.merge import merge

from .worker_memory import reading_budget


@dataclass(frozen=True)
class Readable:
    """One generation of a dataset. ``places`` are its endpoints' locations, without their paths; ``filled`` has a bit
    for each partition, from the lowest of the first byte on, which is 0 if it has no rows; None if that is not known.
    """

    server: Server
    dataset: str
    generation: str
    places: tuple[str, ...]
    filled: bytes | None = None

    @classmethod
    def find(cls, server: Server, dataset: str, generation: str) -> Readable:
        """Ask the server for the locations.

        Raises:
            NotFound: the server has no such dataset.
        """
        return cls.of(server, dataset, generation, server.flight_info(dataset).endpoints[0])

    @classmethod
    def sealed(cls, server: Server, dataset: str, generation: str, answer: dict[str, Any]) -> Readable:
        """From the server's answer to the seal."""
        if "read_locations" not in answer:  # an older server
            return cls.find(server, dataset, generation)
        filled = bytearray()
        for partition in map(int, answer["partition_bytes"]):
            filled.extend(bytes(max(0, (partition >> 3) + 1 - len(filled))))
            filled[partition >> 3] |= 1 << (partition & 7)
        return cls(server, dataset, generation, tuple(answer["read_locations"]), bytes(filled))

    @classmethod
    def of(cls, server: Server, dataset: str, generation: str, endpoint: Any) -> Readable:
        """From the endpoint of the generation's first partition."""
        path = bulk_path(dataset, 0, generation)
        locations = (location.uri.decode() for location in endpoint.locations)
        return cls(server, dataset, generation, tuple(location.removesuffix(path) for location in locations))

    def stream(self, partition: int) -> PartitionStream:
        """The partition's stream, not opened yet."""
        path = bulk_path(self.dataset, partition, self.generation)
        locations = [place + path if place.startswith("http") else place for place in self.places]
        return PartitionStream(
            self.server,
            Ticket(self.dataset, partition, self.generation),
            locations=locations,
            lane=self.server.reading.lane,
        )

    def read(self, partition: int) -> Generator[Any, None, None]:
        """The partition's batches, in order, as they arrive."""
        if self.filled is not None and not self._is_filled(self.filled, partition):
            return
        reading = self.server.reading
        pool = MemoryPool(reading_budget(reading.budget_bytes), "merge")
        with merge(
            [self.stream(partition)],
            pool=pool,
            scratch_dir=reading.scratch_dir,
            timeouts=self.server.timeouts,
        ) as merged:
            yield from merged

    @staticmethod
    def _is_filled(filled: bytes, partition: int) -> bool:
        return partition >> 3 < len(filled) and bool(filled[partition >> 3] >> (partition & 7) & 1)
