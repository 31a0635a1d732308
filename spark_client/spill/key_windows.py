"""A partition's rows in windows: the rows of a key are all in one window, on every side.

Guarantee: every row of every side is in exactly one window, and rows whose keys have equal hashes are in one window.
The rows of one hash come in the order in which they were given.

How
    Batches are gathered in RAM, with all memory that they keep alive (``gathered``). If all sides fit the budget
    together, they are one window, in the given order, and no hash is computed. Beyond the budget the gathered rows are
    written to a scratch file, in 64 lists by the first bits of their hashes (:class:`HashLists`), and all later rows
    whenever they take half of the budget: the allocator keeps part of the first rows' memory. A window is then a list,
    or small neighbouring lists, whose rows take at most half of the budget; the other half is for the consumer. A
    larger list is split again, by the first bits in which its hashes differ.

Memory
    While rows are gathered and written: the budget, a quarter of it for the copies that are written, and the largest
    batch once more; the given rows are released on the way. While windows are read: half of the budget.
    ``ROW_BYTES`` for each row are included. The extents' places take about 500 bytes each, which is 1/1000 of the rows
    that were written.

    Rows are written in portions of a quarter of the budget. While one is written: a copy of it in the order of its
    lists, which takes the place of the given batches one by one, and one extent. An extent has at most 1/32 of the
    budget, or one row.

Format
    An *extent* is a place in the scratch (``scratch``) with rows of one list, as one record batch. Of the rows
    that are written together, a hash that many have gets extents of its own: when its list is split, they move without
    being read.

One hash
    Rows of one hash that do not fit are a window whose rows are read from the file each time that one iterates, at
    most 1/32 of the budget at a time. Keys that are not equal may share a hash.

Disk
    The scratch file holds all rows if one window does not hold them, once more for a list while it is split, and is
    freed as the windows advance, and with the process at the latest. When it cannot be written, the task fails with
    OutOfBudget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.memory import allocator
from spark_client.arrow import (
    Picker,
    batch_bits_before,
    cuts,
    joined,
    together,
)

from .gathered import ROW_BYTES, Gathered, TaskMemory, cut, fit
from .scratch import Parked, Scratch

KeyHashes = Callable[[pa.RecordBatch], NDArray[np.uint64]]

Hashed = tuple[pa.RecordBatch, NDArray[np.uint64]]
"""A batch and the hash of each row's keys."""

_BITS = 6
_EXTENTS = 32
"""Of the budget: the largest ones."""
_PORTIONS = 4
"""Of the budget: the rows that are written at once."""
_FREQUENT = 8
"""A hash that one of so many rows has gets extents of its own."""
_SAMPLE_ROWS = 4096
_TOP = (1 << 64) - 1
_SMALL = 8
"""Of a window's room: smaller lists are one window with their neighbours."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Rows of one side whose hashes are from ``low`` to ``high``. In RAM they take ``weight_bytes``, with all that
    windows count for each row.
    """

    side: int
    parked: Parked
    rows: int
    weight_bytes: int
    low: int
    high: int


def weight_bytes(extents: Sequence[Extent]) -> int:
    """The bytes of the rows in RAM, if they are read together."""
    return sum(extent.weight_bytes for extent in extents)


class HashFile:
    """Writes and reads the extents of all sides.

    ``extent_bytes`` is the size of the largest extents, ``portion_bytes`` that of the rows written at once.
    """

    def __init__(self, hashes: Sequence[KeyHashes], memory: TaskMemory) -> None:
        self.hashes = hashes
        self._scratch = Scratch(memory.scratch_dir, memory=memory)
        self.extent_bytes = max(1, memory.budget_bytes // _EXTENTS)
        self.portion_bytes = memory.budget_bytes // _PORTIONS

    def write(self, side: int, rows: pa.RecordBatch, low: int, high: int) -> Extent:
        """Write rows whose hashes are in this range.

        Raises:
            OutOfBudget: the file cannot be written.
        """
        weight = rows.nbytes + ROW_BYTES * rows.num_rows
        return Extent(side, self._scratch.park([rows]), rows.num_rows, weight, low, high)

    def of_sides(self, extents: Sequence[Extent]) -> list[list[Extent]]:
        return [[extent for extent in extents if extent.side == side] for side in range(len(self.hashes))]

    def read(self, extents: Iterable[Extent]) -> Iterator[pa.RecordBatch]:
        """The rows of one side's extents, in memory of their own.

        Raises:
            CorruptFrame: the file's bytes are not those that were written.
        """
        for extent in extents:
            yield from self._scratch.read(extent.parked)


class HashLists:
    """Lists in the order of their hashes, which are from ``low`` to ``high``. Rows with these two hashes are in
    different lists.
    """

    def __init__(self, file: HashFile, low: int = 0, high: int = _TOP) -> None:
        self.file = file
        self._shift = np.uint64(max(0, (low ^ high).bit_length() - _BITS))
        self._held: list[Hashed] = []
        self._held_bytes = 0
        self._lists: list[list[Extent]] = [[] for _ in range(1 << _BITS)]

    def add(self, side: int, batches: list[pa.RecordBatch]) -> None:
        """Write the rows to the lists; empties ``batches``.

        Raises:
            OutOfBudget: the file cannot be written.
        """
        batches = together(batches)
        batches.reverse()
        while batches:
            for piece in cut(batches.pop(), self.file.extent_bytes):
                self._hold(side, piece)
        self._write(side)

    def move(self, side: int, extents: list[Extent]) -> None:
        """Put the rows of a side's extents into the lists; empties ``extents``. The same errors, and as
        :meth:`HashFile.read`.
        """
        extents.reverse()
        while extents:
            for batch in self.file.read(_of_several(extents)):
                self._hold(side, batch)
            if not extents:
                break
            extent = extents.pop()
            # Earlier rows of this hash come first.
            if any((hashes == extent.low).any() for _, hashes in self._held):
                self._write(side)
            self._append(extent)
        self._write(side)

    def neighbours(self, size_bytes: int) -> Iterator[list[Extent]]:
        """The extents of one list, or of neighbouring lists that take at most this much together. They leave the
        lists.
        """
        waiting: list[Extent] = []
        lists, self._lists = self._lists, []
        for here in lists:
            if waiting and weight_bytes(waiting + here) > size_bytes:
                yield waiting
                waiting = []
            waiting += here
            here.clear()
        if waiting:
            yield waiting

    def _hold(self, side: int, batch: pa.RecordBatch) -> None:
        self._held.append((batch, self.file.hashes[side](batch)))
        self._held_bytes += batch.nbytes + ROW_BYTES * batch.num_rows
        if self._held_bytes >= self.file.portion_bytes:
            self._write(side)

    def _numbers(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint8]:
        return ((hashes >> self._shift) & np.uint64((1 << _BITS) - 1)).astype(np.uint8)

    def _append(self, extent: Extent) -> None:
        self._lists[self._numbers(np.array([extent.low], np.uint64))[0]].append(extent)

    def _write(self, side: int) -> None:
        """Write the rows that are held, and hold none."""
        held, self._held, self._held_bytes = self._held, [], 0
        frequent = _frequent([hashes for _, hashes in held])
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(len(self._lists) + len(frequent))]
        sizes: list[list[int]] = [[0] for _ in parts]
        low, high = np.full(len(parts), _TOP, np.uint64), np.zeros(len(parts), np.uint64)
        held.reverse()
        while held:
            batch, hashes = held.pop()
            numbers = self._numbers(hashes)
            for number, each in enumerate(frequent, len(self._lists)):
                numbers[hashes == each] = number
            order = np.argsort(numbers, kind="stable")
            rows, hashes = Picker(batch).take(order), hashes[order]
            del batch
            counts = np.bincount(numbers)
            filled = np.flatnonzero(counts)
            counts = counts[filled]
            bounds = np.concatenate([[0], np.cumsum(counts)])
            low[filled] = np.minimum(low[filled], np.minimum.reduceat(hashes, bounds[:-1]))
            high[filled] = np.maximum(high[filled], np.maximum.reduceat(hashes, bounds[:-1]))
            part_bytes = np.diff(batch_bits_before(rows, bounds)) // 8
            for number, start, count, size in zip(
                *(each.tolist() for each in (filled, bounds[:-1], counts, part_bytes)), strict=True
            ):
                parts[number].append(rows.slice(start, count))
                sizes[number].append(size)
        for number, part in enumerate(parts):
            for start, end in cuts(np.cumsum(sizes[number]), 0, len(part), self.file.extent_bytes):
                for rows in joined(part[start:end]):
                    self._append(self.file.write(side, rows, int(low[number]), int(high[number])))


def _of_several(extents: list[Extent]) -> Iterator[Extent]:
    """Take extents from the end, as long as they are of several hashes."""
    while extents and extents[-1].low < extents[-1].high:
        yield extents.pop()


def _frequent(hashes: Sequence[NDArray[np.uint64]]) -> list[np.uint64]:
    """The hashes of at least one in ``_FREQUENT`` rows, as a sample shows."""
    step = max(1, sum(map(len, hashes)) // _SAMPLE_ROWS)
    sample = np.concatenate([np.empty(0, np.uint64), *(each[::step] for each in hashes)])
    different, counts = np.unique(sample, return_counts=True)
    return list(different[counts * _FREQUENT >= len(sample)])


class Rows:
    """One side of a window: its batches, in order, as often as one iterates over them, until the next window is
    requested.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches: Sequence[pa.RecordBatch] | None = batches
        self.rows = sum(batch.num_rows for batch in batches)
        self.size_bytes = sum(batch.nbytes for batch in batches)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._batches is None:
            raise ValueError("these rows were taken, or released when the next window was requested")
        return iter(self._batches)

    def take_all(self) -> list[pa.RecordBatch]:
        """The batches, which this object holds no longer: so a consumer frees them one by one, or all at once."""
        batches = list(self)
        self.release()
        return batches

    def release(self) -> None:
        """Hold no batch from now on, also if a consumer still refers to this object."""
        self._batches = None


class _ReadAgain(Rows):
    """Rows that are read from the file each time, an extent at a time."""

    def __init__(self, file: HashFile, extents: list[Extent]) -> None:
        super().__init__(())
        self._file, self._extents = file, extents
        self.rows = sum(extent.rows for extent in extents)
        self.size_bytes = weight_bytes(extents)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        check_held = super().__iter__
        check_held()
        for batch in self._file.read(self._extents):
            check_held()
            yield batch

    def release(self) -> None:
        super().release()
        self._extents = []


@dataclass(frozen=True)
class Window:
    """``sides`` together fit the budget; only with ``one_hash``, where the keys of all rows have one hash, they may be
    larger: then the rows are read from a file each time.
    """

    sides: tuple[Rows, ...]
    one_hash: bool = False


def windows(
    sides: Sequence[Iterator[pa.RecordBatch]], hashes: Sequence[KeyHashes], memory: TaskMemory
) -> Iterator[Window]:
    """The windows of one or more sides; one window, without a hash computed, if all fits the budget. The sides are
    read one after the other.

    Args:
        hashes: of each side, the function that gives the 64-bit hash of each row's keys. Equal keys must have equal
            hashes on all sides.

    Raises:
        OutOfBudget: the scratch file cannot be written.
        CorruptFrame: its bytes are not those that were written.
    """
    gathered = [Gathered() for _ in sides]
    lists = _gather(sides, gathered, hashes, memory)
    if lists is not None:
        yield from _windows(lists, memory.budget_bytes // 2)
        return
    # A consumer that releases a side's rows frees their memory.
    yield Window(tuple(Rows(each.take()) for each in gathered))


def _gather(
    sides: Sequence[Iterator[pa.RecordBatch]],
    gathered: Sequence[Gathered],
    hashes: Sequence[KeyHashes],
    memory: TaskMemory,
) -> HashLists | None:
    """Read all sides: None if they fit, and are in ``gathered``."""
    lists: HashLists | None = None
    room_bytes = memory.budget_bytes
    for each, side in zip(gathered, sides, strict=True):
        for batch in side:
            if not batch.num_rows:
                continue
            each.add(batch)
            if fit(gathered, room_bytes):
                continue
            if lists is None:
                lists = HashLists(HashFile(hashes, memory))
                # The allocator keeps part of what the first rows took.
                room_bytes //= 2
            _write(gathered, lists)
    if lists is not None:
        _write(gathered, lists)
    return lists


def _write(gathered: Sequence[Gathered], lists: HashLists) -> None:
    """Write all rows, and hold none."""
    for number, side in enumerate(gathered):
        lists.add(number, side.take())
    _give_back()


def _windows(lists: HashLists, room_bytes: int) -> Iterator[Window]:
    """The windows of these lists, which are used up."""
    file = lists.file
    for extents in lists.neighbours(room_bytes // _SMALL):
        low, high = min(extent.low for extent in extents), max(extent.high for extent in extents)
        fits = weight_bytes(extents) <= room_bytes
        sides = file.of_sides(extents)
        # Their places on the disk are free once they are read.
        extents.clear()
        if fits or low == high:
            yield from _window(file, sides, one_hash=not fits)
            continue
        deeper = HashLists(file, low, high)
        for number, side in enumerate(sides):
            deeper.move(number, side)
        _give_back()
        yield from _windows(deeper, room_bytes)


def _window(file: HashFile, extents: list[list[Extent]], *, one_hash: bool) -> Iterator[Window]:
    sides = tuple(_ReadAgain(file, side) if one_hash else Rows(list(file.read(side))) for side in extents)
    extents.clear()
    try:
        yield Window(sides, one_hash=one_hash)
    finally:
        for rows in sides:
            rows.release()
    _give_back()


def _give_back() -> None:
    """Return freed memory to the system. Arrow's allocator would keep about as much as the budget, for a while."""
    pa.default_memory_pool().release_unused()
    allocator.give_back()
