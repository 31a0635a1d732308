"""The stage of ``sortWithinPartitions``: the rows of a partition in order; and that before the exchange of
``orderBy(…).limit(n)``: each task sends its first rows only.

Guarantee of the latter: of every part of the rows, those that are among the first ``rows`` of the whole are in the
result; equal rows that came earlier are before later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_client.arrow import Declared, Picker, SortCodes, SortKey, ranges_of
from spark_client.spill import cut, sorted_batches

from .one_pass import OwnStage, Pass

_GATHERED_ROWS = 64 * 1024


@dataclass(frozen=True)
class SortStage(OwnStage):
    """Sorts each partition by ``keys``, whose columns have types that Spark orders; equal rows stay in their order."""

    declared: Declared
    keys: tuple[SortKey, ...]

    divisible = False

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """The rows in order. Raises OutOfBudget: no room for the rows beyond the budget in the scratch directory."""
        return sorted_batches(batches, self.keys, how.memory)


@dataclass(frozen=True)
class TopStage(OwnStage):
    """The first ``rows`` rows by ``keys`` of those that the task reads, in order; more if they do not fit half of the
    task's budget: then all rows go through from there on.
    """

    rows: int
    keys: tuple[SortKey, ...]
    declared: Declared

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """The rows, at the end of the input."""
        candidates: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        bound: SortCodes | None = None
        for batch in batches:
            chosen = self._before(batch, bound)
            candidates.append(chosen)
            rows, size_bytes = rows + chosen.num_rows, size_bytes + chosen.nbytes
            if rows < self.rows + _GATHERED_ROWS and 2 * size_bytes <= how.memory.budget_bytes:
                continue
            top, bound = self._top(candidates)
            candidates, rows, size_bytes = [top], top.num_rows, top.nbytes
            if 4 * size_bytes > how.memory.budget_bytes:
                yield from cut(top)
                yield from batches
                return
        if rows:
            yield from cut(self._top(candidates)[0])

    def _before(self, batch: pa.RecordBatch, bound: SortCodes | None) -> pa.RecordBatch:
        """A copy of the rows that are before the bound: an equal one comes after the rows that were there."""
        positions = np.arange(batch.num_rows)
        if bound is not None:
            positions = np.flatnonzero(ranges_of(SortCodes.of(batch, self.keys), bound) == 0)
        return Picker(batch).take(positions)

    def _top(self, batches: list[pa.RecordBatch]) -> tuple[pa.RecordBatch, SortCodes | None]:
        """The first rows, and the last of them if there are as many as wanted."""
        together = pa.concat_batches(batches)
        batches.clear()
        top = Picker(together).take(SortCodes.of(together, self.keys).order()[: self.rows])
        if top.num_rows < self.rows:
            return top, None
        return top, SortCodes.of(top.slice(top.num_rows - 1), self.keys)
