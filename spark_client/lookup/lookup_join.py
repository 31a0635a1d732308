"""Joins batches with an image: a left outer or an inner join whose right side is a changelog.

Guarantee: the rows are those of Spark's join of the two on the keys (``join_keys`` says which keys are equal): a left
row once for each right row with its keys; with ``how="left"`` also a left row without one, once, with nulls. The left
rows keep their order.

A batch's result is given in pieces of at most ``PIECE_ROWS`` rows, however many rows its keys have.

Nothing of the changelog goes through Spark: tasks map their host's image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Picker, array_over, spread
from spark_client.joining import PIECE_ROWS, KeyForm, Keys, expanded, present

from .host_images import HostImages
from .images import Image, Matches
from .lookup_content import LookupContent
from .version_pins import MicroBatch, version_of

How = Literal["left", "inner"]

Positions = NDArray[np.int64]


def probe(image: Image, forms: Sequence[KeyForm], columns: Sequence[pa.Array]) -> Matches:
    """The matches of each row of these key columns, in the rows' order."""
    valid = present(columns)
    if valid is None:
        return image.find(Keys.of([form.normal(each) for form, each in zip(forms, columns, strict=True)]))
    rows = np.flatnonzero(valid)
    at = array_over(rows)
    normal = [form.normal(each.take(at)) for form, each in zip(forms, columns, strict=True)]
    matches = image.find(Keys.of(normal))
    return Matches(rows[matches.positions], matches.layers, matches.rows)


@dataclass(frozen=True)
class Join:
    """The join of a task's batches.

    Args:
        keys: the left side's key columns.
        first: left columns that come first in the result; the others follow, then the values.
        schema: of the result.
    """

    keys: tuple[str, ...]
    forms: tuple[KeyForm, ...]
    how: How
    first: tuple[str, ...]
    schema: pa.Schema

    def run(self, batch: pa.RecordBatch, image: Image) -> Iterator[pa.RecordBatch]:
        matches = probe(image, self.forms, [batch.column(key) for key in self.keys])
        counts = np.bincount(matches.positions, minlength=batch.num_rows)
        before = np.concatenate([[0], np.cumsum(counts)])
        shown = np.maximum(counts, 1) if self.how == "left" else counts
        left = batch.select([*self.first, *(each for each in batch.schema.names if each not in self.first)])
        for rows, within in expanded(shown, PIECE_ROWS):
            numbers = np.where(counts[rows] > 0, before[rows] + within, -1)
            yield self._join(left, image, rows, matches, numbers)

    def _join(
        self, left: pa.RecordBatch, image: Image, rows: Positions, matches: Matches, numbers: Positions
    ) -> pa.RecordBatch:
        if len(rows) != left.num_rows or (rows != np.arange(len(rows))).any():
            left = Picker(left).take(rows)
        has = numbers >= 0
        chosen = numbers[has]
        shown = Matches(matches.positions[chosen], matches.layers[chosen], matches.rows[chosen])
        right = image.take(shown, slice(len(self.keys), None))
        if not has.all():
            right = spread(right, has)
        return pa.RecordBatch.from_arrays([*left.columns, *right.columns], schema=self.schema)


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
