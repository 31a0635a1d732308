"""The locations where a dataset's partitions can be read, as a value that is pickled into tasks.

Guarantee: :meth:`Readable.read` gives the whole partition of this one generation, or an error (``merge.merged``).

Only the driver asks the server: all partitions have the same locations.
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


@dataclass(frozen=True)
class Readable:
    """One generation of a dataset. ``places`` are its endpoints' locations, without their paths."""

    server: Server
    dataset: str
    generation: str
    places: tuple[str, ...]

    @classmethod
    def find(cls, server: Server, dataset: str, generation: str) -> Readable:
        """Ask the server for the locations.

        Raises:
            NotFound: the server has no such dataset.
        """
        return cls.of(server, dataset, generation, server.flight_info(dataset).endpoints[0])

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
        reading = self.server.reading
        pool = MemoryPool(reading.budget_bytes, "merge")
        with merge(
            [self.stream(partition)],
            pool=pool,
            scratch_dir=reading.scratch_dir,
            timeouts=self.server.timeouts,
        ) as merged:
            yield from merged
