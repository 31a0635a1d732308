"""The batches of one side in RAM, and the bytes that they keep alive.

A slice keeps its parent's buffers, a received batch the message or the chunk in which it came. So a batch counts with
all allocations that it refers to, each once, and not with its rows' bytes alone. :meth:`Gathered.compact` copies the
rows out of allocations of which they need only a part.
"""

from __future__ import annotations

import pyarrow as pa

from spark_client.arrow import held_buffers, held_dictionaries, own_bytes, together

ROW_BYTES = 16
"""For each row: the hash, the order and the other arrays that grouping or sorting takes."""

_BATCH_BYTES = 2048
"""Of a batch's objects, beside its buffers."""


class Gathered:
    """Batches in order. ``weight_bytes`` is their size in RAM, ``least_bytes`` that of their rows after
    :meth:`compact`.
    """

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.weight_bytes = 0
        self.least_bytes = 0
        self._allocations: set[int] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        dictionaries = held_dictionaries(batch)
        new = {
            address: size
            for address, size in (held_buffers(batch) | dictionaries).items()
            if address not in self._allocations
        }
        shared_bytes = sum(size for address, size in dictionaries.items() if address in new)
        rows_bytes = batch.num_rows * ROW_BYTES
        self._allocations.update(new)
        self.weight_bytes += sum(new.values()) + rows_bytes + _BATCH_BYTES
        self.least_bytes += own_bytes(batch) + shared_bytes + rows_bytes
        self.batches.append(batch)

    def compact(self) -> None:
        """Copy all rows into batches of their own, small ones joined."""
        copies = together(self.batches, copied=True)
        self.clear()
        for batch in copies:
            self.add(batch)

    def clear(self) -> None:
        self.batches = []
        self.weight_bytes = self.least_bytes = 0
        self._allocations = set()
