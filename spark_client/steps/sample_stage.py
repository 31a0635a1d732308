"""The stage of a sample for ranges: a bounded random sample of each partition's keys, or of each piece that a task
reads, with the rows they stand for.

Guarantee: each of these rows is in the sample with the same probability, and the weights add up to all of them. The
same seed and rows in the same order give the same sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext

from spark_client.arrow import Declared, Picker, array_over

from .one_pass import OwnStage, Pass

_MOST_BYTES = 4 << 20
_LEAST_ROWS = 16


@dataclass(frozen=True)
class SampleStage(OwnStage):
    """``rows`` rows of ``columns`` from each partition, fewer if they are larger than ``_MOST_BYTES`` together, and the
    weight of each as the last column.
    """

    declared: Declared
    columns: tuple[str, ...]
    rows: int
    seed: int

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        context = TaskContext.get()
        partition = how.partition if how.partition is not None else context.partitionId() if context else 0
        random = np.random.default_rng((self.seed, partition))
        sample = _Sample(self.rows)
        for batch in batches:
            # Of the rows, those with the smallest numbers are the sample: each row's chance is the same.
            sample.add(batch.select(list(self.columns)), random.random(batch.num_rows))
        if sample.seen:
            rows = sample.rows()
            weights = array_over(np.full(rows.num_rows, sample.seen / rows.num_rows))
            yield pa.RecordBatch.from_arrays([*rows.columns, weights], schema=self.declared.schema)


class _Sample:
    """The rows with the smallest numbers so far."""

    def __init__(self, most: int) -> None:
        self.seen = 0
        self._most = most
        self._rows: list[pa.RecordBatch] = []
        self._numbers: list[NDArray[np.float64]] = []
        self._held = self._held_bytes = 0
        self._limit = 1.0

    def add(self, rows: pa.RecordBatch, numbers: NDArray[np.float64]) -> None:
        self.seen += rows.num_rows
        chosen = np.flatnonzero(numbers < self._limit)
        if not len(chosen):
            return
        self._rows.append(Picker(rows).take(chosen))
        self._numbers.append(numbers[chosen])
        self._held += len(chosen)
        self._held_bytes += self._rows[-1].nbytes
        while self._held_bytes > _MOST_BYTES and self._most > _LEAST_ROWS:
            self._most = max(_LEAST_ROWS, min(self._most, self._held) // 2)
            self._shrink()
        if self._held > 2 * self._most:
            self._shrink()

    def rows(self) -> pa.RecordBatch:
        self._shrink()
        return self._rows[0]

    def _shrink(self) -> None:
        rows = self._rows[0] if len(self._rows) == 1 else pa.concat_batches(self._rows)
        numbers = np.concatenate(self._numbers)
        if len(numbers) > self._most:
            kept = np.sort(np.argpartition(numbers, self._most)[: self._most])
            rows, numbers = Picker(rows).take(kept), numbers[kept]
            self._limit = float(numbers.max())
        self._rows, self._numbers = [rows], [numbers]
        self._held, self._held_bytes = rows.num_rows, rows.nbytes
