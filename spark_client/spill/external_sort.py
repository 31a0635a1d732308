"""The rows of many batches in Spark's order, within a memory budget.

Guarantee: :func:`sorted_batches` gives every row exactly once, ordered by the keys (``arrow.sort_codes``); rows with
equal keys stay in the order in which they came. A result batch has at most ``OUT_ROWS`` rows and about ``OUT_BYTES``,
less with a budget below 64 MiB, or one row.

How
    Batches are gathered with all memory that they keep alive (``gathered``). If they fit three quarters of the
    budget, they are sorted in memory. Otherwise they are sorted in *runs*, as many rows as fit, which go to files and
    are merged. Rows that are in order already are not copied.

Memory
    The budget, and the batch that is being added. A row counts with ``ROW_BYTES`` for its code, position and size, and
    text, lists and structs that are keys count twice, because their codes take as much. While runs are merged: half the
    budget for their blocks, and as much for the rows that leave in one step; at least two blocks of two runs.

Runs
    A run is a sequence of *blocks*, each parked in the scratch (``scratch``) and read as a whole. A block has
    ``budget / 512`` by weight (64 KiB to 4 MiB), or one row. Its disk space is released as the merge advances.

    One or two blocks of each run are in memory. The rows up to the *bound*, which is the least of the runs' last rows
    in memory, are sorted together and leave; then each run with less than one block reads the next one. So each
    step sorts about one block of every run that has rows there, and none of the others. More runs than fit are first
    merged in groups of neighbours, so that equal rows stay in their order.

Ending
    The end of the iterator, its close and an error release the memory and the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import NumberedRows, SortCodes, SortKey, picked, together

from .gathered import OUT_BYTES, ROW_BYTES, Gathered, TaskMemory, cut, fit, piece_bytes, pieces, row_weights
from .scratch import Parked, Scratch

_LEAST_BYTES = 64 << 10
_MOST_BYTES = 1 << 30
"""Of a run: columns of text have 32-bit offsets."""


class Runs:
    """The sorted runs of one task. Each added run has rows that come after those of the runs before it."""

    def __init__(self, keys: Sequence[SortKey], memory: TaskMemory) -> None:
        self._keys = keys
        self._memory = memory
        self._scratch = Scratch(memory.scratch_dir, memory=memory)
        self._runs: list[_Run] = []
        self._block_bytes = min(max(memory.budget_bytes // 512, _LEAST_BYTES), OUT_BYTES)

    def add(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Write the rows, which are in order, as a run. Raises OutOfBudget."""
        self._runs.append(self._written(rows))

    def merged(self) -> Iterator[pa.RecordBatch]:
        """The rows of all runs, which are used up; for one call."""
        runs, self._runs = self._runs, []
        while len(runs) > (most := self._most_at_once(runs)):
            runs = [
                runs[start]
                if start + 1 == len(runs)
                else self._written(self._merge(runs[start : start + most]))
                for start in range(0, len(runs), most)
            ]
        self._scratch.close()
        yield from self._merge(runs)

    def _written(self, rows: Iterable[pa.RecordBatch]) -> _Run:
        run = _Run(self._scratch, self._keys)
        for batch in rows:
            weights = row_weights(batch) + ROW_BYTES
            for start, end in pieces(weights, self._block_bytes):
                block = batch.slice(start, end - start)
                run.append(block, int(weights[start:end].sum()))
        return run

    def _most_at_once(self, runs: list[_Run]) -> int:
        largest = max(run.largest_bytes for run in runs)
        return max(2, self._memory.budget_bytes // 2 // (2 * largest))

    def _merge(self, runs: list[_Run]) -> Iterator[pa.RecordBatch]:
        while True:
            for run in runs:
                run.fill()
            runs = [run for run in runs if run.blocks]
            if not runs:
                return
            open_runs = [number for number, run in enumerate(runs) if run.parked]
            if open_runs:
                last = min(open_runs, key=lambda number: (runs[number].last, number))
                bound = runs[last].last
                leaving = [
                    part
                    for number, run in enumerate(runs)
                    # Equal rows of later runs wait for those that this run still has in its file.
                    for part in run.leave(bound, equal=number <= last)
                ]
            else:
                leaving = [part for run in runs for part in run.leave(None, equal=True)]
            yield from _sort_parts(leaving, piece_bytes(self._memory.budget_bytes))


@dataclass(slots=True)
class _Block:
    """Rows in memory, their codes, and the places of the first and the last of them."""

    rows: pa.RecordBatch
    codes: SortCodes
    first: tuple[Any, ...]
    last: tuple[Any, ...]

    @classmethod
    def of(cls, rows: pa.RecordBatch, codes: SortCodes) -> _Block:
        return cls(rows, codes, codes.place(0), codes.place(codes.rows - 1))

    def count_before(self, place: tuple[Any, ...], *, equal: bool) -> int:
        """How many rows are before the place; with ``equal`` also those at it."""
        if self.last < place or (equal and self.last == place):
            return self.codes.rows
        if place < self.first:
            return 0
        return self.codes.count_before(place, equal=equal)

    def split(self, count: int) -> tuple[_Block, _Block]:
        """The first rows, and the others; both are there."""
        return (
            self.of(self.rows.slice(0, count), self.codes.slice(0, count)),
            self.of(self.rows.slice(count), self.codes.slice(count, self.codes.rows)),
        )


class _Run:
    """Blocks in a file, in order, and those that were read."""

    def __init__(self, scratch: Scratch, keys: Sequence[SortKey]) -> None:
        self._scratch = scratch
        self._keys = keys
        self.parked: deque[Parked] = deque()
        self.blocks: deque[_Block] = deque()
        self.largest_bytes = 1
        self._most_rows = 0

    def append(self, rows: pa.RecordBatch, weight: int) -> None:
        """Write a block. Raises OutOfBudget."""
        self.parked.append(self._scratch.park([rows]))
        self.largest_bytes = max(self.largest_bytes, weight)
        self._most_rows = max(self._most_rows, rows.num_rows)

    def fill(self) -> None:
        """Read the next block if less than one is in memory."""
        if self.parked and sum(block.codes.rows for block in self.blocks) < self._most_rows:
            (rows,) = self._scratch.read(self.parked.popleft())
            self.blocks.append(_Block.of(rows, SortCodes.of(rows, self._keys)))

    @property
    def last(self) -> tuple[Any, ...]:
        return self.blocks[-1].last

    def leave(self, bound: tuple[Any, ...] | None, *, equal: bool) -> Iterator[_Block]:
        """Take the rows before the bound out, with ``equal`` also those at it; all without a bound."""
        while self.blocks:
            block = self.blocks[0]
            count = block.codes.rows if bound is None else block.count_before(bound, equal=equal)
            if not count:
                return
            if count < block.codes.rows:
                first, self.blocks[0] = block.split(count)
                yield first
                return
            yield self.blocks.popleft()


def _sort_parts(parts: list[_Block], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of all parts, each of which is in order."""
    if len(parts) == 1:
        yield from cut(parts[0].rows, most_bytes)
        return
    codes = SortCodes.concat([part.codes for part in parts])
    order = codes.order()
    del codes
    part_of = np.repeat(np.arange(len(parts), dtype=np.int32), [part.rows.num_rows for part in parts])[order]
    weights = np.concatenate([row_weights(part.rows) for part in parts])[order]
    del order
    positions = [0] * len(parts)

    def next_rows(part: int, places: NDArray[np.int64]) -> pa.RecordBatch:
        start, positions[part] = positions[part], positions[part] + len(places)
        return parts[part].rows.slice(start, len(places))

    for start, end in pieces(weights, most_bytes):
        yield picked(part_of[start:end], np.arange(start, end), next_rows)


def sorted_batches(
    batches: Iterator[pa.RecordBatch], keys: Sequence[SortKey], memory: TaskMemory
) -> Iterator[pa.RecordBatch]:
    """The rows in the order of the keys, as batches that the caller may keep.

    Args:
        keys: at least one, of columns of the batches, whose types ``arrow.check_sortable`` allows.

    Raises:
        OutOfBudget: the rows do not fit the budget, and the scratch directory cannot be written.
        CorruptFrame: the bytes in the file are not those that were written.
    """
    room_bytes = min(memory.budget_bytes * 3 // 4, _MOST_BYTES)
    most_bytes = piece_bytes(memory.budget_bytes)
    gathered = Gathered()
    codes_bytes = 0
    runs: Runs | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.add(batch)
        codes_bytes += _codes_bytes(batch, keys)
        if fit([gathered], room_bytes - codes_bytes):
            continue
        runs = runs or Runs(keys, memory)
        runs.add(_in_order(gathered, keys, most_bytes))
        codes_bytes = 0
    if runs is None:
        yield from _in_order(gathered, keys, most_bytes)
        return
    if gathered.batches:
        runs.add(_in_order(gathered, keys, most_bytes))
    yield from runs.merged()


def _codes_bytes(batch: pa.RecordBatch, keys: Sequence[SortKey]) -> int:
    columns = [batch.column(key.column) for key in keys]
    return sum(column.nbytes for column in columns if not pa.types.is_primitive(column.type))


def _in_order(gathered: Gathered, keys: Sequence[SortKey], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, in pieces; empties ``gathered``."""
    batches = together(gathered.take())
    if not batches:
        return
    codes = SortCodes.concat([SortCodes.of(batch, keys) for batch in batches])
    if codes.ascends():
        batches.reverse()
        while batches:
            yield from cut(batches.pop(), most_bytes)
        return
    order = codes.order()
    del codes
    rows = NumberedRows(batches)
    batches.clear()
    for start, end in pieces(rows.sizes()[order], most_bytes):
        yield rows.take(order[start:end])
