"""The server's side of a lookup: one generation of a changelog, which tasks read and pin."""

from __future__ import annotations

from dataclasses import dataclass

from flight_server.protocol import HOLD, DatasetRequest, HoldRequest, NotFound, Unavailable
from spark_client.changelogs import ChangelogAddress, VersionBatches, read_deltas, read_snapshot
from spark_client.connection import retrying
from spark_client.executors import owner_of_task

PIN_SECONDS = 24 * 3600.0
"""The lease of a pin: a query that is stopped for less can replay its last micro-batch."""


@dataclass(frozen=True)
class ChangelogSource:
    """See ``lookup_content.VersionSource``."""

    address: ChangelogAddress

    @property
    def name(self) -> str:
        return self.address.dataset

    @property
    def identity(self) -> str:
        address = self.address
        return f"{address.server.location} {address.dataset} {address.generation}"

    def snapshot(self, version: int) -> VersionBatches:
        return read_snapshot(self.address, version)

    def deltas(self, after: int, version: int) -> VersionBatches:
        return read_deltas(self.address, after, version)

    def upper(self) -> int:
        address = self.address
        said = address.server.action("statistics", DatasetRequest(address.dataset).encode(), once=True)
        if (numbers := said["datasets"][address.dataset].get("changelog")) is None:
            raise NotFound(f"dataset {address.dataset!r} is no changelog any more", dataset=address.dataset)
        return int(numbers["upper"])

    def pin(self, name: str, *, releases: str | None = None) -> int:
        address = self.address
        request = HoldRequest(
            address.dataset,
            name,
            address.generation,
            lease_seconds=PIN_SECONDS,
            releases=releases,
            owner=owner_of_task(),
        )
        return int(
            retrying(
                address.server.timeouts,
                lambda: address.server.action(HOLD, request.encode(), once=True)["version"],
                (Unavailable,),
            )
        )
