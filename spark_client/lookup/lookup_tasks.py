"""The code of lookups in Spark's tasks. Nothing of the changelog goes through Spark: tasks map their host's image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flight_server.protocol import InvalidRequest

from .host_images import HostImages
from .images import Image
from .lookup_content import LookupContent
from .lookup_join import Join
from .version_pins import MicroBatch, version_of


@dataclass(frozen=True)
class Chosen:
    """Which version a task takes.

    Args:
        version: that of the driver.
        always: also in a micro-batch, which otherwise has its own.
    """

    version: int | None = None
    always: bool = False

    def image(self, content: LookupContent) -> Image:
        """The image of the version, fetched if this host does not have it. Raises as ``HostImages.at``."""
        batch = None if self.always else MicroBatch.of_task()
        if batch is not None:
            version = version_of(content, batch)
        elif self.version is not None:
            version = self.version
        else:
            raise InvalidRequest(
                f"the lookup in changelog {content.source.name!r} was made for a stream, and this task belongs to no "
                "micro-batch: make another lookup for it"
            )
        return HostImages(content).at(version)


@dataclass(frozen=True)
class JoinTask:
    """``ShuffleClient.lookup``."""

    content: LookupContent
    join: Join
    chosen: Chosen

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        image: Image | None = None
        for batch in batches:
            image = image or self.chosen.image(self.content)
            yield from self.join.run(batch, image)
