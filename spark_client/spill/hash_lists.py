"""Rows in a scratch file, in lists by bits of the 64-bit hashes of their keys.

Guarantee: the rows of one hash are in one list, in the order in which they were written.

Format
    An *extent* is a place in the scratch (``scratch``) with rows of one list, as one record batch. In RAM it takes
    about 500 bytes. The dictionaries are apart, once for all extents that have the same, one after the other; so the
    rows that are written together are first given common ones. A hash that many of these rows have gets extents of its
    own: when its list is split, they move without being read.

Memory
    Rows are written in portions of a third of the budget. While one is written: a copy of it in the order of its
    lists, which takes the place of the given batches one by one, and one extent. An extent has at most 1/32 of the
    budget, or one row. The dictionaries of the last extent stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import (
    Picker,
    batch_bits_before,
    cuts,
    has_dictionary,
    held_dictionaries,
    joined,
    own_bytes,
    together,
)

from .gathered import ROW_BYTES
from .row_pieces import cut
from .scratch import Parked, Scratch, SharedHead
from .task_memory import TaskMemory

KeyHashes = Callable[[pa.RecordBatch], NDArray[np.uint64]]

Hashed = tuple[pa.RecordBatch, NDArray[np.uint64]]
"""A batch and the hash of each row's keys."""

_BITS = 6
_EXTENTS = 32
"""Of the budget: the largest ones."""
_PORTIONS = 3
"""Of the budget: the rows that are written at once."""
_FREQUENT = 8
"""A hash that one of so many rows has gets extents of its own."""
_SAMPLE_ROWS = 4096
_TOP = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The common part of extents: the place of their schema and dictionaries, and the size of these in RAM."""

    parked: Parked
    dictionary_bytes: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Rows whose hashes are from ``low`` to ``high``. In RAM they take ``rows_bytes``, with all that windows count for
    each row, and their dictionaries.
    """

    parked: Parked
    head: Head
    rows: int
    rows_bytes: int
    low: int
    high: int


def weight_bytes(extents: Sequence[Extent]) -> int:
    """The size of the rows in RAM, if they are read together."""
    heads = groupby(extent.head for extent in extents)
    return sum(extent.rows_bytes for extent in extents) + sum(head.dictionary_bytes for head, _ in heads)


class HashFile:
    """Writes and reads the extents of one side. Written bytes count as spilled, also if a later write fails.

    ``extent_bytes`` is the size of the largest extents, ``portion_bytes`` that of the rows written at once.
    """

    def __init__(self, memory: TaskMemory) -> None:
        self._memory = memory
        self._scratch = Scratch(memory.scratch_dir)
        self._shared = SharedHead(self._scratch)
        self._head: Head | None = None
        self._last: pa.RecordBatch | None = None
        self.extent_bytes = max(1, memory.budget_bytes // _EXTENTS)
        self.portion_bytes = memory.budget_bytes // _PORTIONS

    def write(self, rows: pa.RecordBatch, low: int, high: int) -> Extent:
        """Write rows whose hashes are in this range. Raises OutOfBudget: the file cannot be written."""
        before_bytes = self._scratch.written_bytes
        try:
            head, parked = self._shared.park(rows)
        finally:
            self._memory.spilled_bytes += self._scratch.written_bytes - before_bytes
        if self._head is None or self._head.parked is not head:
            self._head = Head(head, sum(held_dictionaries(rows).values()))
            self._last = Picker(rows).take(np.empty(0, np.int64))
        rows_bytes = own_bytes(rows) + ROW_BYTES * rows.num_rows
        return Extent(parked, self._head, rows.num_rows, rows_bytes, low, high)

    def with_common_dictionaries(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The batches, none empty, with the same dictionaries where Arrow can make them: those of the last extent with
        the new values, if that takes no more than a portion.
        """
        if not batches or not any(map(has_dictionary, batches[0].schema.types)):
            return batches
        for before in ([], []) if self._last is None else ([self._last], []):
            with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                table = pa.Table.from_batches([*before, *batches]).unify_dictionaries()
                unified: list[pa.RecordBatch] = table.to_batches()
                if not before or sum(held_dictionaries(unified[-1]).values()) <= self.portion_bytes:
                    return unified[-len(batches) :]
        # They have too many values together, or are in nested columns.
        return batches

    def read(self, extents: Iterator[Extent]) -> Iterator[pa.RecordBatch]:
        """The extents' rows, in memory of their own; those of one head, one after the other, share its dictionaries.
        Raises CorruptFrame: the file's bytes are not those that were written.
        """
        for head, group in groupby(extents, key=lambda extent: extent.head):
            yield from self._scratch.read_after(head.parked, (extent.parked for extent in group))


class HashLists:
    """The lists of one side, in the order of their hashes, which are from ``low`` to ``high``. Rows with these two
    hashes are in different lists.
    """

    def __init__(self, file: HashFile, hashes: KeyHashes, low: int = 0, high: int = _TOP) -> None:
        self._file, self._hashes = file, hashes
        self._shift = np.uint64(max(0, (low ^ high).bit_length() - _BITS))
        self._held: list[Hashed] = []
        self._held_bytes = 0
        self.lists: list[list[Extent]] = [[] for _ in range(1 << _BITS)]

    def add(self, batches: list[pa.RecordBatch]) -> None:
        """Write the rows to the lists; empties ``batches``. Raises OutOfBudget: the file cannot be written."""
        batches = together(batches)
        batches.reverse()
        while batches:
            for piece in cut(batches.pop(), self._file.extent_bytes):
                self._hold(piece)
        self._write()

    def move(self, extents: list[Extent]) -> None:
        """Put the rows of the extents into the lists; empties ``extents``. The same errors, and as
        :meth:`HashFile.read`.
        """
        extents.reverse()
        while extents:
            for batch in self._file.read(_of_several(extents)):
                self._hold(batch)
            if not extents:
                break
            extent = extents.pop()
            # Earlier rows of this hash come first.
            if any((hashes == extent.low).any() for _, hashes in self._held):
                self._write()
            self._append(extent)
        self._write()

    def _hold(self, batch: pa.RecordBatch) -> None:
        self._held.append((batch, self._hashes(batch)))
        self._held_bytes += own_bytes(batch) + ROW_BYTES * batch.num_rows
        if self._held_bytes >= self._file.portion_bytes:
            self._write()

    def _numbers(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint8]:
        return ((hashes >> self._shift) & np.uint64((1 << _BITS) - 1)).astype(np.uint8)

    def _append(self, extent: Extent) -> None:
        self.lists[self._numbers(np.array([extent.low], np.uint64))[0]].append(extent)

    def _write(self) -> None:
        """Write the rows that are held, and hold none."""
        held, self._held, self._held_bytes = self._held, [], 0
        frequent = _frequent([each for _, each in held])
        count = len(self.lists) + len(frequent)
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        part_bytes: list[list[int]] = [[0] for _ in range(count)]
        low, high = np.full(count, _TOP, np.uint64), np.zeros(count, np.uint64)
        batches = self._file.with_common_dictionaries([batch for batch, _ in held])
        hashed = list(zip(batches, [each for _, each in held], strict=True))
        del held, batches
        hashed.reverse()
        while hashed:
            batch, hashes = hashed.pop()
            numbers = self._numbers(hashes)
            for number, each in enumerate(frequent, len(self.lists)):
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
            for start, end in cuts(np.cumsum(part_bytes[number]), 0, len(part), self._file.extent_bytes):
                for rows in joined(part[start:end]):
                    self._append(self._file.write(rows, int(low[number]), int(high[number])))


def _of_several(extents: list[Extent]) -> Iterator[Extent]:
    """Take extents from the end, as long as they are of several hashes."""
    while extents and extents[-1].low < extents[-1].high:
        yield extents.pop()


def _frequent(hashes: Sequence[NDArray[np.uint64]]) -> list[np.uint64]:
    """The hashes of at least one in ``_FREQUENT`` rows, as a sample shows."""
    step = max(1, sum(map(len, hashes)) // _SAMPLE_ROWS)
    sample = np.concatenate([np.empty(0, np.uint64), *(each[::step] for each in hashes)])
    found, counts = np.unique(sample, return_counts=True)
    return list(found[counts * _FREQUENT >= len(sample)])
