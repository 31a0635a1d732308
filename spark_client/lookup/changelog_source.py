"""The server's side of a lookup: one generation of a changelog, which tasks read and pin."""

from __future__ import annotations

from dataclasses import dataclass

from flight_server.protocol import Unavailable, Versions
from spark_client.changelogs import NamedHold, VersionBatches
from spark_client.connection import retrying
from spark_client.executors import owner_of_task
from spark_client.merge import DatasetRef

PIN_SECONDS = 24 * 3600.0
"""The lease of a pin: a query that is stopped for less can replay its last micro-batch."""


@dataclass(frozen=True)
class ChangelogSource:
    """See ``lookup_content.VersionSource``."""

    ref: DatasetRef

    @property
    def name(self) -> str:
        return self.ref.dataset

    @property
    def identity(self) -> str:
        ref = self.ref
        return f"{ref.server.location} {ref.dataset} {ref.generation}"

    def snapshot(self, version: int) -> VersionBatches:
        return VersionBatches(self.ref, Versions(version))

    def deltas(self, after: int, version: int) -> VersionBatches:
        return VersionBatches(self.ref, Versions(version, after))

    def pin(self, name: str, *, releases: str | None = None) -> int:
        hold = NamedHold(self.ref, name, PIN_SECONDS, owner_of_task())
        timeouts = self.ref.server.timeouts
        return retrying(timeouts, lambda: hold.renew(releases=releases, once=True), (Unavailable,)).version
