"""Copies a user function's rows into memory that the function cannot write to.

A function may fill one numpy array again and again and give a batch over it each time: ``pa.array`` of it is a view.
A caller that keeps a batch after the function goes on calls :func:`own` first.

Copied
    Each column but those inside the function's own input, which Arrow gives for reading only. Arrow does not
    distinguish its own memory from numpy's, nor a read-only view from memory that never changes, so results of
    compute functions are copied, too. A copy costs about 0.06 CPU s/GB, the exchange 2.5. Types are those that a
    Spark schema has in Arrow: a copy would share dictionaries and views.

Dictionaries
    Arrow's writers send only changed dictionaries again, and take one at the same address for unchanged. So batches
    that are sent at once go through :func:`own_dictionaries`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .sizes import allocations, has_dictionary

SMALL_ROWS = 64
SMALL_BYTES = 64 * 1024
"""Smaller batches are copied whole, in a few microseconds; a look at each column's memory takes tens."""


_ALIGNED_BYTES = 8


class Lent:
    """The batches that a function works on; referenced, so that their addresses are not used again."""

    def __init__(self, *data: Any) -> None:
        self._data = data
        self._held: dict[int, int] | None = None

    def lend(self, *data: Any) -> None:
        """These are lent from now on, in the place of those before."""
        self._data, self._held = data, None

    def holds(self, array: Any) -> bool:
        """Whether all memory of the array is part of the lent batches."""
        if not self._data:
            return False
        if self._held is None:
            columns = [column for data in self._data for column in data.columns]
            self._held = allocations([array for column in columns for array in _chunks(column)])
        return allocations([array]).items() <= self._held.items()


def own(batch: Any, lent: Lent) -> Any:
    """The batch, with copies of the columns that ``lent`` does not hold."""
    if batch.num_rows <= SMALL_ROWS or batch.get_total_buffer_size() <= SMALL_BYTES:
        return pa.concat_batches([batch])
    columns = [column if lent.holds(column) else pa.concat_arrays([column]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def aligned(batch: Any) -> Any:
    """The batch, copied if values of it do not lie at a multiple of 8 bytes."""
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.address % _ALIGNED_BYTES:
                return pa.concat_batches([batch])
    return batch


def own_dictionaries(batch: Any) -> Any:
    """The batch, copied if it has dictionaries."""
    if not any(has_dictionary(field.type) for field in batch.schema):
        return batch
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def _chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]
