"""The rows of the side of a join that is held in memory.

Guarantee of :func:`held_table`: a table that lives as long as a join's tasks need it, such as a broadcast's, is indexed
once per process for the same keys and columns. Its index is dropped with it: the process holds the table only weakly.

Memory of such tables
    Of each table the index (``key_index``) and its keys in their normal form unless they are exact. Rows stay where
    they are, in a broadcast's case in the mapped file, but for tables of several chunks up to ``COPIED_BYTES``: they
    are copied together, because a row is then taken from one place. So are columns that are cast.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import NumberedRows, row_bytes, spread, together

from .join_keys import Keys, MatchKeys, Positions
from .join_plan import Side
from .key_index import KeyIndex

_CHUNK_BYTES = 1 << 30
"""Below the limit of 32-bit offsets."""

Sizes = int | Positions
"""Bytes of each row; one number when all have the same."""


class HeldRows:
    """Rows in memory, with the index of their keys. Immutable. ``schema``: of the columns that results have."""

    def __init__(self, batches: Sequence[pa.RecordBatch], keys: MatchKeys, schema: pa.Schema) -> None:
        batches = [batch for batch in batches if batch.num_rows]
        self._nothing = pa.RecordBatch.from_arrays(
            [pa.nulls(0, kind) for kind in schema.types], schema=schema
        )
        self._rows = NumberedRows([only(batch, schema) for batch in batches])
        self.index = _index_of(keys, batches)
        self.sizes = row_sizes(self._rows.batches)
        self.widest_bytes = largest(self.sizes)

    def __len__(self) -> int:
        return self._rows.count

    def take(self, numbers: Positions, valid: NDArray[np.bool_] | None = None) -> pa.RecordBatch:
        """The rows of these numbers, in this order; nulls in all columns where ``valid`` is not set: the number
        there is not used.
        """
        if valid is None or valid.all():
            return self._rows_at(numbers)
        return spread(self._rows_at(numbers[valid]), valid)

    def _rows_at(self, numbers: Positions) -> pa.RecordBatch:
        return self._rows.take(numbers) if len(numbers) else self._nothing


def joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """A copy of the rows in as few batches as columns' 32-bit offsets allow: each row is then taken from one place."""
    return together([*batches], _CHUNK_BYTES, copied=True)


def only(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch's columns of this schema."""
    return batch if batch.schema.equals(schema) else batch.select(schema.names)


def row_sizes(batches: Sequence[pa.RecordBatch]) -> Sizes:
    """The bytes of each row, rounded up."""
    sizes = [row_bytes(batch) for batch in batches]
    same = [each for each in sizes if isinstance(each, int)]
    if len(same) == len(sizes):
        return max(same, default=0)
    return np.concatenate(
        [np.broadcast_to(each, batch.num_rows) for each, batch in zip(sizes, batches, strict=True)]
    )


def largest(sizes: Sizes) -> int:
    """The size of the largest row."""
    return sizes if isinstance(sizes, int) else int(sizes.max(initial=0))


def sizes_of(sizes: Sizes, rows: Positions, valid: NDArray[np.bool_] | None = None) -> Positions:
    """The sizes of these rows; 0 where ``valid`` is not set."""
    if isinstance(sizes, int):
        return np.full(len(rows), sizes, np.int64)
    if valid is None:
        return sizes[rows]
    filled = np.zeros(len(rows), np.int64)
    filled[valid] = sizes[rows[valid]]
    return filled


def _index_of(keys: MatchKeys, batches: Sequence[pa.RecordBatch]) -> KeyIndex:
    parts = list(_parts(keys, batches))
    if not parts:
        return KeyIndex(Keys((), exact=True))
    columns = tuple(_concat(column) for column in zip(*(part.columns for part, _ in parts), strict=True))
    every = Keys.of(columns)
    rows = np.concatenate([rows for _, rows in parts])
    return KeyIndex(every, None if len(rows) == sum(batch.num_rows for batch in batches) else rows)


def _concat(columns: Sequence[pa.Array]) -> pa.Array:
    if pa.types.is_binary(columns[0].type) and sum(column.nbytes for column in columns) > _CHUNK_BYTES:
        columns = [column.cast(pa.large_binary()) for column in columns]
    return pa.concat_arrays(columns)


def _parts(keys: MatchKeys, batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[Keys, Positions]]:
    before = 0
    for batch in batches:
        part, rows = keys.of(batch)
        yield part, (np.arange(batch.num_rows) if rows is None else rows) + before
        before += batch.num_rows


COPIED_BYTES = 32 * 1024 * 1024


@dataclass
class _Known:
    table: weakref.ref[pa.Table]
    rows: dict[Any, HeldRows] = field(default_factory=dict)


_known: dict[int, _Known] = {}
"""By the table's address; an entry goes with its table."""


def held_table(table: pa.Table, side: Side, cast: Callable[[pa.Table], pa.Table]) -> HeldRows:
    """The rows of a table for a join of which it is this side, after a cast to the side's types. The cast may raise."""
    address = id(table)
    known = _known.get(address)
    if known is None or known.table() is not table:
        known = _known[address] = _Known(weakref.ref(table, lambda _: _known.pop(address, None)))
    form = (side.keys, side.schema)
    if form not in known.rows:
        batches = cast(table).to_batches()
        if len(batches) > 1 and table.nbytes <= COPIED_BYTES:
            batches = joined(batches)
        known.rows[form] = HeldRows(batches, side.keys, side.schema)
    return known.rows[form]
