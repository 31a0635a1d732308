"""The rows of a task that writes, kept while they are few, so that they can be sent again.

A server that restarts loses staged rows, and Spark gives a task its rows once. So a task keeps the first
:func:`few_bytes` of them, and gives them to the driver with its message: a small write, such as a micro-batch, rides
out a restart; of a larger one the driver's seal says that it is lost.

Spark's driver holds the messages of all tasks at once, and fails a job whose messages are larger than
``spark.driver.maxResultSize``, 1 GiB by default. A task does not know how many there are: so the first
``ALL_BYTES / FEW_BYTES`` may keep ``FEW_BYTES`` each, and task ``n`` after them ``ALL_BYTES / n``: 223 MiB for 100,000
tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

FEW_BYTES = 128 << 10
ALL_BYTES = 32 << 20


def few_bytes(task: int) -> int:
    """The bytes that the task of this number may keep."""
    return min(FEW_BYTES, ALL_BYTES // (task + 1))


class FewRows:
    """Each iteration gives all batches while they are few; else those that no iteration has given yet."""

    def __init__(self, batches: Iterator[Any], few_bytes: int = FEW_BYTES) -> None:
        self._few_bytes = few_bytes
        self._batches = batches
        self._kept: list[Any] = []
        self._kept_bytes = 0

    @property
    def are_few(self) -> bool:
        """Whether all that were given so far can be given again."""
        return self._kept_bytes <= self._few_bytes

    def __iter__(self) -> Iterator[Any]:
        yield from list(self._kept)
        for batch in self._batches:
            self._kept_bytes += batch.nbytes
            self._kept = [*self._kept, batch] if self.are_few else []
            yield batch

    def encoded(self, schema: pa.Schema) -> bytes | None:
        """All of them as an Arrow IPC stream; None if the rows, or the stream with its schema, are not few."""
        if not self.are_few:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            for batch in self._kept:
                stream.write_batch(batch)
        stream_bytes = bytes(sink.getvalue().to_pybytes())
        return stream_bytes if len(stream_bytes) <= self._few_bytes else None
