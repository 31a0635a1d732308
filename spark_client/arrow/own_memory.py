"""Rows that a user's function gave, in memory that it cannot write to again.

A function may fill one numpy array over and over and give a batch over it each time: ``pa.array`` of a numpy
array is a view. Spark encodes a batch before it lets the function go on. Code of ours that keeps a batch for
longer takes it through :func:`own` first.

What is copied
    Each column whose memory the function may still write to: all but those that lie in what it was lent, which
    Arrow gives out for reading only. Arrow does not tell its own memory from numpy's (both are "mutable"), nor a
    read-only view from memory that never changes, so what a compute function made is copied, too. A copy costs
    about 0.06 CPU s/GB, the exchange 2.5.

Types are those that a Spark schema has in Arrow: dictionaries and views, which a copy would share, are not
among them.

Dictionaries
    Arrow's writers send a dictionary again only when it has changed, and take one at the same address for the
    same one. Batches that are sent at once, and may have dictionaries, go through :func:`own_dictionaries`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from .sizes import allocations, has_dictionary

SMALL_ROWS = 64
SMALL_BYTES = 64 * 1024
"""Copied in a microsecond or a few; looking at the memory of each column takes tens."""


class Lent:
    """The batch or table that a function works on. It is kept, so that no other memory gets its addresses."""

    def __init__(self, data: Any = None) -> None:
        self._data = data
        self._held: dict[int, int] | None = None

    def each(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, each of them lent until the next one is asked for."""
        for batch in batches:
            self._data, self._held = batch, None
            yield batch
            self._data = self._held = None

    def holds(self, array: Any) -> bool:
        """Whether all memory of the array is part of what is lent."""
        if self._data is None:
            return False
        if self._held is None:
            arrays = (array for column in self._data.columns for array in _chunks(column))
            self._held = allocations(buffer for array in arrays for buffer in array.buffers())
        return allocations(iter(array.buffers())).items() <= self._held.items()


def own(batch: Any, lent: Lent) -> Any:
    """The batch; what ``lent`` does not hold of it is copied, and all of it where that is less work to copy."""
    if batch.num_rows <= SMALL_ROWS or batch.get_total_buffer_size() <= SMALL_BYTES:
        return pa.concat_batches([batch])
    columns = [column if lent.holds(column) else pa.concat_arrays([column]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def own_dictionaries(batch: Any) -> Any:
    """The batch, for a writer that compares its dictionaries with those of the next one."""
    if not any(has_dictionary(field.type) for field in batch.schema):
        return batch
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def _chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]
