"""Rows in a scratch file, in lists by bits of the 64-bit hashes of their keys.

Guarantee: the rows of one hash are in one list, in the order in which they were written.

Format
    An *extent* is a place in the scratch (``scratch``) with rows of one list, as one record batch. In RAM it takes
    about 500 bytes. A hash that many of the rows have that are written together gets extents of its own: when its list
    is split, they move without being read.

Memory
    While rows are written: a copy of them in the order of their lists, which takes the place of the given batches one
    by one, and one extent. An extent has at most 1/32 of the budget, or one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import Picker, batch_bits_before, cuts, held_dictionaries, joined, own_bytes, together

from .gathered import ROW_BYTES
from .row_pieces import cut
from .scratch import Parked, Scratch
from .task_memory import TaskMemory

KeyHashes = Callable[[pa.RecordBatch], NDArray[np.uint64]]

Hashed = tuple[pa.RecordBatch, NDArray[np.uint64]]
"""A batch and the hash of each row's keys."""

_BITS = 6
_EXTENTS = 32
"""Of the budget: the largest ones."""
_FREQUENT = 8
"""A hash that one of so many rows has gets extents of its own."""
_SAMPLE_ROWS = 4096
_TOP = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """Rows whose hashes are from ``low`` to ``high``. In RAM they take ``rows_bytes``, with all that windows count for
    each row, and ``dictionary_bytes``.
    """

    parked: Parked
    rows: int
    rows_bytes: int
    dictionary_bytes: int
    low: int
    high: int

    @property
    def weight_bytes(self) -> int:
        """What the rows take in RAM."""
        return self.rows_bytes + self.dictionary_bytes


class HashLists:
    """The lists of one side, in the order of their hashes, which are from ``low`` to ``high``. Rows with these two
    hashes are in different lists.
    """

    def __init__(self, low: int = 0, high: int = _TOP) -> None:
        self._shift = np.uint64(max(0, (low ^ high).bit_length() - _BITS))
        self.lists: list[list[Extent]] = [[] for _ in range(1 << _BITS)]

    def numbers(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """The list of each hash."""
        return ((hashes >> self._shift) & np.uint64((1 << _BITS) - 1)).astype(np.uint8)

    def append(self, extent: Extent) -> None:
        """Put the extent, whose rows are all of one list, behind the others of this list."""
        self.lists[self.numbers(np.array([extent.low], np.uint64))[0]].append(extent)


class HashFile:
    """Writes and reads the extents of one task. What is written counts as spilled, also if a later write fails."""

    def __init__(self, memory: TaskMemory) -> None:
        self._memory = memory
        self._scratch = Scratch(memory.scratch_dir)
        self._extent_bytes = max(1, memory.budget_bytes // _EXTENTS)

    def add(self, lists: HashLists, batches: list[pa.RecordBatch], hashes: KeyHashes) -> None:
        """Write the rows to the lists; empties ``batches``.

        Raises:
            OutOfBudget: the file cannot be written.
        """
        pieces = [piece for batch in together(batches) for piece in cut(batch, self._extent_bytes)]
        self._write(lists, [(piece, hashes(piece)) for piece in pieces])

    def move(self, lists: HashLists, extents: list[Extent], hashes: KeyHashes, room_bytes: int) -> None:
        """Put the rows of the extents into the lists, at most about ``room_bytes`` of them in RAM at once; empties
        ``extents``. The same errors, and as :meth:`read`.
        """
        held: list[Hashed] = []
        held_bytes = 0
        extents.reverse()
        while extents:
            extent = extents.pop()
            if extent.low == extent.high:
                # Earlier rows of this hash come first.
                if any((here == extent.low).any() for _, here in held):
                    self._write(lists, held)
                    held_bytes = 0
                lists.append(extent)
                continue
            batch = self.read(extent)
            held.append((batch, hashes(batch)))
            held_bytes += extent.weight_bytes
            if held_bytes > room_bytes:
                self._write(lists, held)
                held_bytes = 0
        self._write(lists, held)

    def read(self, extent: Extent) -> pa.RecordBatch:
        """The extent's rows, in memory of their own.

        Raises:
            CorruptFrame: the file's bytes are not those that were written.
        """
        (batch,) = self._scratch.read(extent.parked)
        return batch

    def _write(self, lists: HashLists, hashed: list[Hashed]) -> None:
        """Write the rows; empties ``hashed``."""
        frequent = _frequent([each for _, each in hashed])
        count = len(lists.lists) + len(frequent)
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        part_bytes: list[list[int]] = [[0] for _ in range(count)]
        low, high = np.full(count, _TOP, np.uint64), np.zeros(count, np.uint64)
        hashed.reverse()
        while hashed:
            batch, hashes = hashed.pop()
            numbers = lists.numbers(hashes)
            for number, each in enumerate(frequent, len(lists.lists)):
                numbers[hashes == each] = number
            order = np.argsort(numbers, kind="stable")
            rows, hashes = Picker(batch).take(order), hashes[order]
            del batch
            counts = np.bincount(numbers, minlength=count)
            filled = np.flatnonzero(counts)
            ends = np.cumsum(counts)[filled]
            starts = ends - counts[filled]
            low[filled] = np.minimum(low[filled], np.minimum.reduceat(hashes, starts))
            high[filled] = np.maximum(high[filled], np.maximum.reduceat(hashes, starts))
            sizes = np.diff(batch_bits_before(rows, np.append(starts, rows.num_rows))) // 8
            for number, start, end, size in zip(
                *(a.tolist() for a in (filled, starts, ends, sizes)), strict=True
            ):
                parts[number].append(rows.slice(start, end - start))
                part_bytes[number].append(size)
        for number, part in enumerate(parts):
            for start, end in cuts(np.cumsum(part_bytes[number]), 0, len(part), self._extent_bytes):
                for rows in joined(part[start:end]):
                    lists.append(self._parked(rows, int(low[number]), int(high[number])))

    def _parked(self, rows: pa.RecordBatch, low: int, high: int) -> Extent:
        parked = self._scratch.park([rows])
        self._memory.spilled_bytes += parked.size_bytes
        rows_bytes = own_bytes(rows) + ROW_BYTES * rows.num_rows
        return Extent(parked, rows.num_rows, rows_bytes, sum(held_dictionaries(rows).values()), low, high)


def _frequent(hashes: Sequence[NDArray[np.uint64]]) -> list[np.uint64]:
    """The hashes of at least one in ``_FREQUENT`` rows, as a sample shows."""
    step = max(1, sum(map(len, hashes)) // _SAMPLE_ROWS)
    sample = np.concatenate([np.empty(0, np.uint64), *(each[::step] for each in hashes)])
    found, counts = np.unique(sample, return_counts=True)
    return list(found[counts * _FREQUENT >= len(sample)])
