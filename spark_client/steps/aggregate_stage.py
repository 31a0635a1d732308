"""The stages of ``aggregate``: rows reduced in each task before an exchange by the keys, and finished after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import row_hashes
from spark_client import spill
from spark_client.arrow import Declared, Picker, together
from spark_client.reducing import BATCH_ROWS, Reduction, ResultColumn, finished, merge_bytes

from .one_pass import OwnStage, Pass, drained

_MOST_PARTS = 1 << 12


@dataclass(frozen=True)
class PartialStage(OwnStage):
    """The rows of a task, reduced as far as its memory allows: a group may have several rows in the result."""

    reduction: Reduction
    declared: Declared

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """Reduced rows. Raises InvalidRequest: a sum leaves the range of its type."""
        for table in self.reduction.reduced(self.reduction.lifted(batches), how.memory.budget_bytes):
            yield from table.to_batches(max_chunksize=BATCH_ROWS)


@dataclass(frozen=True)
class MergeStage(OwnStage):
    """One row of states for each group of a partition, for a stage that groups them once more."""

    reduction: Reduction
    declared: Declared

    divisible = False

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """Reduced rows. Raises InvalidRequest: as PartialStage."""
        for table in merged(self.reduction, batches, how):
            yield from table.to_batches(max_chunksize=BATCH_ROWS)


@dataclass(frozen=True)
class FinalStage(OwnStage):
    """One row for each group of a partition: keys, carried columns and ``results``, in the order of ``declared``;
    without keys one row, also for an empty partition.

    Groups beyond the memory are merged in windows of keys (``spill.windows``).
    """

    reduction: Reduction
    results: tuple[ResultColumn, ...]
    declared: Declared

    divisible = False

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """The results. Raises InvalidRequest: as PartialStage."""
        if not self.reduction.keys:
            table = next(self.reduction.reduced(batches, None), None)
            yield from self._finish(empty(self.reduction) if table is None else table)
            return
        for table in merged(self.reduction, batches, how):
            yield from self._finish(table)

    def _finish(self, table: pa.Table) -> Iterator[Any]:
        reduction = self.reduction
        for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
            first = len(reduction.keys) + len(reduction.carried)
            columns = [
                *batch.columns[:first],
                *finished(self.results, batch.columns[first:], self.declared.stage),
            ]
            names = [*reduction.schema.names[:first], *(result.name for result in self.results)]
            yield pa.RecordBatch.from_arrays(columns, names=names)


def merged(reduction: Reduction, batches: Iterator[Any], how: Pass) -> Iterator[pa.Table]:
    """Tables of merged rows, each group in one of them.

    Half of the task's memory reduces the rows as they come, which is enough where tasks have sent the same groups.
    Groups that do not fit it are gathered in the other half (``spill.windows``), and then merged part by part, in
    the first half.
    """
    half_bytes = max(1, how.memory.budget_bytes // 2)
    reduced = reduction.reduced(batches, half_bytes)
    first = [table for table in (next(reduced, None), next(reduced, None)) if table is not None]
    if len(first) < 2:
        yield from first
        return
    parts = (
        batch
        for table in chain(drained(first), reduced)
        for batch in table.to_batches(max_chunksize=BATCH_ROWS)
    )
    hashes = partial(_hashes, reduction.keys)
    with how.memory.part(half_bytes) as memory:
        for window in spill.windows([parts], [hashes], memory):
            (rows,) = window.sides
            if window.one_hash:
                yield from reduction.reduced(iter(rows), None)
            else:
                for part in _parts(rows.take_all(), hashes, half_bytes):
                    yield reduction.merge(part)


def _parts(
    batches: list[pa.RecordBatch], hashes: spill.KeyHashes, size_bytes: int
) -> Iterator[list[pa.RecordBatch]]:
    """The rows in parts whose merges take about ``size_bytes`` each; rows of one group are in one part."""
    count = -(-sum(map(merge_bytes, batches)) // size_bytes)
    if count <= 1:
        yield batches
        return
    count = min(count, _MOST_PARTS)
    batches = together(batches)
    # Of neighbouring hashes, which a window's are, the remainders differ.
    part_of = [(hashes(batch) % np.uint64(count)).astype(np.uint16) for batch in batches]
    pickers = [Picker(batch) for batch in batches]
    del batches
    for number in range(count):
        chosen = [np.flatnonzero(each == number) for each in part_of]
        part = [picker.take(rows) for picker, rows in zip(pickers, chosen, strict=True) if len(rows)]
        if part:
            yield part


def _hashes(keys: tuple[str, ...], batch: pa.RecordBatch) -> NDArray[np.uint64]:
    return row_hashes([batch.column(key) for key in keys], batch.num_rows)


def empty(reduction: Reduction) -> pa.Table:
    """The state of a group without rows."""
    columns = [
        pa.nulls(1, state.type)
        if state.kernel
        else state.merged(pa.nulls(0, state.type), np.empty(0, np.int64), 1)
        for state in reduction.states
    ]
    return pa.table(columns, schema=reduction.schema)
