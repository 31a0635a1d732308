"""Joins batches with an image: a left outer or an inner join whose right side is a changelog.

Guarantee: the rows are those of Spark's join of the two on the keys (``join_keys`` says which keys are equal): a left
row once for each right row with its keys; with ``how="left"`` also a left row without one, once, with nulls. The left
rows keep their order.

A batch's result is given in pieces of at most ``PIECE_ROWS`` rows, however many rows its keys have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import Picker, array_over

from .images import Image, Matches
from .join_keys import KeyForm, present
from .layers import Keys

How = Literal["left", "inner"]
PIECE_ROWS = 64 * 1024

Positions = NDArray[np.int64]


def probe(image: Image, forms: Sequence[KeyForm], columns: Sequence[pa.Array]) -> Matches:
    """The matches of each row of these key columns, in the rows' order."""
    valid = present(columns)
    if valid is None:
        return image.find(Keys.of([form.normal(each) for form, each in zip(forms, columns, strict=True)]))
    rows = np.flatnonzero(valid)
    at = array_over(rows)
    taken = [form.normal(each.take(at)) for form, each in zip(forms, columns, strict=True)]
    found = image.find(Keys.of(taken))
    return Matches(rows[found.positions], found.layers, found.rows)


@dataclass(frozen=True)
class Join:
    """What a task does with each batch.

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
        """The batch's rows with their values."""
        matches = probe(image, self.forms, [batch.column(key) for key in self.keys])
        counts = np.bincount(matches.positions, minlength=batch.num_rows)
        before = np.concatenate([[0], np.cumsum(counts)])
        shown = np.maximum(counts, 1) if self.how == "left" else counts
        ends = np.cumsum(shown)
        left = _ordered(batch, self.first)
        for start in range(0, int(ends[-1]) if len(ends) else 0, PIECE_ROWS):
            stop = min(start + PIECE_ROWS, int(ends[-1]))
            first = int(np.searchsorted(ends, start, side="right"))
            last = int(np.searchsorted(ends, stop, side="left")) + 1
            rows = np.repeat(np.arange(first, last), shown[first:last])
            skipped = start - int(ends[first] - shown[first])
            rows = rows[skipped : skipped + stop - start]
            window = self._matched(before, counts, rows, skipped)
            yield self._joined(left, image, rows, matches, window)

    @staticmethod
    def _matched(before: Positions, counts: Positions, rows: Positions, skipped: int) -> Positions:
        """For each row of the result the number of its match, or -1."""
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = rows[1:] != rows[:-1]
        starts = np.flatnonzero(begins)
        within = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
        within[rows == rows[0]] += skipped
        return np.where(counts[rows] > 0, before[rows] + within, -1)

    def _joined(
        self, left: pa.RecordBatch, image: Image, rows: Positions, matches: Matches, numbers: Positions
    ) -> pa.RecordBatch:
        if len(rows) != left.num_rows or (rows != np.arange(len(rows))).any():
            left = Picker(left).take(rows)
        has = numbers >= 0
        chosen = numbers[has]
        found = Matches(matches.positions[chosen], matches.layers[chosen], matches.rows[chosen])
        taken = image.take(found, slice(len(self.keys), None))
        if not has.all():
            taken = spread(taken, has)
        return pa.RecordBatch.from_arrays([*left.columns, *taken.columns], schema=self.schema)


def spread(batch: pa.RecordBatch, has: NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows at the places whose flags are set, and nulls at the others."""
    places = np.where(has, np.cumsum(has) - 1, 0)
    at = pa.Array.from_buffers(
        pa.int64(),
        len(places),
        [pa.py_buffer(np.packbits(has, bitorder="little")), pa.py_buffer(places.astype(np.int64))],
    )
    if not batch.num_rows:
        columns = [pa.nulls(len(places), column.type) for column in batch.columns]
    else:
        columns = [column.take(at) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _ordered(batch: pa.RecordBatch, first: Sequence[str]) -> pa.RecordBatch:
    rest = [name for name in batch.schema.names if name not in first]
    return batch.select([*first, *rest])
