"""The code of lookups in Spark's tasks. Nothing of the changelog goes through Spark: tasks map their host's image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.arrow import spread

from .current_images import current_images
from .host_images import HostImages
from .images import Image
from .lookup_content import LookupContent
from .lookup_join import Join, probe
from .version_pins import MicroBatch, version_of, version_of_application


@dataclass(frozen=True)
class Chosen:
    """Which version a task takes.

    Args:
        version: that of the driver.
        always: also in a micro-batch, which otherwise has its own.
        pin: outside of a micro-batch and without a version, the name of the application's pin.
    """

    version: int | None = None
    always: bool = False
    pin: str | None = None

    def image(self, content: LookupContent) -> Image:
        """The image of the version, fetched if this host does not have it. Raises as ``HostImages.at``."""
        batch = None if self.always else MicroBatch.of_task()
        if batch is not None:
            version = version_of(content, batch)
        elif self.version is not None:
            version = self.version
        elif self.pin is not None:
            version = version_of_application(content, self.pin)
        else:
            raise InvalidRequest(
                f"the lookup in changelog {content.source.name!r} was made for a stream, and this task belongs to no "
                "micro-batch: make another lookup for it"
            )
        images = HostImages(content)
        image = images.at(version)
        if batch is not None:
            current_images.use(images)
        return image


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


class ValueTask:
    """``ShuffleClient.lookup_udf``: a function of key columns that returns values, null where there is no row.

    ``alone`` returns the only value column itself, not a struct.
    """

    def __init__(self, content: LookupContent, chosen: Chosen, *, alone: bool) -> None:
        self._content = content
        self._chosen = chosen
        self._alone = alone
        self._image: Image | None = None

    def __call__(self, *columns: Any) -> Any:
        """The value of each row. Raises InvalidRequest: another number of columns than keys, or a key with several
        rows.
        """
        content = self._content
        if len(columns) != len(content.keys):
            raise InvalidRequest(
                f"the lookup in changelog {content.source.name!r} takes {len(content.keys)} columns "
                f"({', '.join(content.keys)}), not {len(columns)}"
            )
        if self._image is None:
            # One task uses one instance, and all batches of the task have one version.
            self._image = self._chosen.image(content)
        matches = probe(self._image, content.forms, columns)
        has = np.zeros(len(columns[0]), np.bool_)
        has[matches.positions] = True
        if int(has.sum()) != len(matches):
            twice = int(np.flatnonzero(np.bincount(matches.positions) > 1)[0])
            key = ", ".join(
                f"{name} = {column[twice]}" for name, column in zip(content.keys, columns, strict=True)
            )
            raise InvalidRequest(
                f"changelog {content.source.name!r} has several rows with {key[:200]}, and lookup_udf gives one for "
                "each key: create it with the rule latest() of these keys, or use lookup()"
            )
        rows = spread(self._image.take(matches, slice(len(content.keys), None)), has)
        if self._alone:
            return rows.column(0)
        absent = pa.py_buffer(np.packbits(~has, bitorder="little"))
        mask = pa.Array.from_buffers(pa.bool_(), len(has), [None, absent])
        return pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema), mask=mask)
