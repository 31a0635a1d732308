"""The rows of a task that writes, kept while they are few, so that they can be sent again.

A server that restarts loses what was staged, and Spark gives a task its rows once. So a task keeps the first
``FEW_BYTES`` of them, and gives them to the driver with its message: a small write, such as a micro-batch, rides out a
restart; of a larger one the driver's seal says that it is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

FEW_BYTES = 128 << 10
"""Of each task: Spark's driver holds the messages of all tasks at once."""


class FewRows:
    """Each iteration gives all batches while they are few; else what no iteration has given yet."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._kept: list[Any] = []
        self._kept_bytes = 0

    @property
    def are_few(self) -> bool:
        """Whether all that were given so far can be given again."""
        return self._kept_bytes <= FEW_BYTES

    def __iter__(self) -> Iterator[Any]:
        yield from list(self._kept)
        for batch in self._batches:
            self._kept_bytes += batch.nbytes
            self._kept = [*self._kept, batch] if self.are_few else []
            yield batch

    def encoded(self, schema: pa.Schema) -> bytes | None:
        """All of them as an Arrow IPC stream; None if they are not few."""
        if not self.are_few:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            for batch in self._kept:
                stream.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())
