"""The rows that one task holds in RAM while it gathers: its budgets, the batches of one side, and pieces of them.

Batches
    A slice keeps its parent's buffers, a received batch the message or the chunk in which it came. So a batch counts
    with all allocations that it refers to, each once, and not with its rows' bytes alone. :meth:`Gathered.compact`
    copies the rows out of allocations of which they need only a part.

Budgets
    Where ``spark.executor.pyspark.memory`` limits a Python worker, a task's budgets for receiving and sending together
    take at most half of the address space that the worker may still map when they are made; the rest is for the
    functions. Without a limit they are the user's settings.

    Spark limits a worker's address space, and the kernel counts mappings whether they were touched or not: a fresh
    worker with Arrow has mapped about 0.5 GiB. A task for which even that is too little ends with Python's
    ``MemoryError`` or Arrow's, and a note that says in which stage.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import cuts, held_buffers, row_bytes, together

OUT_ROWS = 64 * 1024
OUT_BYTES = 4 << 20
_LEAST_BYTES = 64 << 10
ROW_BYTES = 16
"""For each row: the hash, the order and the other arrays that grouping or sorting takes."""

_BATCH_BYTES = 2048
"""Of a batch's objects, beside its buffers."""
LEAST_BYTES = 1 << 20


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
        new = {
            address: size for address, size in held_buffers(batch).items() if address not in self._allocations
        }
        rows_bytes = batch.num_rows * ROW_BYTES
        self._allocations.update(new)
        self.weight_bytes += sum(new.values()) + rows_bytes + _BATCH_BYTES
        self.least_bytes += batch.nbytes + rows_bytes
        self.batches.append(batch)

    def compact(self) -> None:
        """Copy all rows into batches of their own, small ones joined."""
        for batch in together(self.take(), copied=True):
            self.add(batch)

    def take(self) -> list[pa.RecordBatch]:
        """The batches, which this object holds no longer."""
        batches, self.batches = self.batches, []
        self.weight_bytes = self.least_bytes = 0
        self._allocations = set()
        return batches


def fit(sides: Sequence[Gathered], room_bytes: int) -> bool:
    """Whether their rows fit; they are first copied out of larger allocations where that makes them fit."""
    if sum(side.weight_bytes for side in sides) > room_bytes:
        if 2 * sum(side.least_bytes for side in sides) > room_bytes:
            return False
        for side in sides:
            side.compact()
    return True


def piece_bytes(budget_bytes: int) -> int:
    """The size of a piece within this budget: several copies of one are made at once."""
    return min(max(budget_bytes // 16, _LEAST_BYTES), OUT_BYTES)


def row_weights(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """The bytes of each row, rounded up."""
    return np.broadcast_to(np.asarray(row_bytes(batch), np.int64), batch.num_rows)


def pieces(weights: NDArray[np.int64], most_bytes: int = OUT_BYTES) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive rows, each of at most so many bytes and of ``OUT_ROWS`` rows, or one row."""
    # A row counts at least so much that OUT_ROWS rows of it are OUT_BYTES.
    counted = np.maximum(weights, OUT_BYTES // OUT_ROWS)
    return cuts(np.concatenate([[0], np.cumsum(counted)]), 0, len(weights), most_bytes)


def cut(batch: pa.RecordBatch, most_bytes: int = OUT_BYTES) -> Iterator[pa.RecordBatch]:
    """The batch in such pieces, not copied."""
    if batch.num_rows <= OUT_ROWS and batch.nbytes <= most_bytes:
        if batch.num_rows:
            yield batch
        return
    for start, stop in pieces(row_weights(batch), most_bytes):
        yield batch.slice(start, stop - start)


@dataclass
class TaskMemory:
    """``budget_bytes`` of rows in RAM for each stage that gathers; beyond it files in ``scratch_dir`` (None: the
    system's temporary directory). ``spilled_bytes`` counts the bytes written there, by stages and by the streams that
    they read.
    """

    budget_bytes: int = 64 << 20
    scratch_dir: str | None = None
    spilled_bytes: int = 0

    @contextmanager
    def part(self, budget_bytes: int) -> Iterator[TaskMemory]:
        """So much of the budget, at least a byte. Bytes written for the part count in the whole at the end."""
        part = replace(self, budget_bytes=max(1, budget_bytes), spilled_bytes=0)
        try:
            yield part
        finally:
            self.spilled_bytes += part.spilled_bytes


def reading_budget(wanted_bytes: int) -> int:
    """For a merge, which holds this much, and parks the rest in a file."""
    return _within(wanted_bytes, 4)


def writing_budget(wanted_bytes: int) -> int:
    """For a coalescer, whose peak is about twice as much."""
    return _within(wanted_bytes, 8)


def _within(wanted_bytes: int, parts: int) -> int:
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return wanted_bytes
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    left_bytes = limit_bytes - pages * os.sysconf("SC_PAGE_SIZE")
    return min(wanted_bytes, max(LEAST_BYTES, left_bytes // parts))
