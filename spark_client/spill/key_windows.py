"""A partition's rows in windows: the rows of a key are all in one window, on every side.

Guarantee: every row of every side is in exactly one window, and rows whose keys have equal hashes are in one window.
The rows of one hash come in the order in which they were given.

How
    Batches are gathered in RAM, with all memory that they keep alive (``gathered``). If all sides fit the budget
    together, they are one window, in the given order, and no hash is computed. Beyond the budget the gathered rows are
    written to a scratch file, in 64 lists by the first bits of their hashes (``hash_lists``), and all later rows
    whenever they take half of the budget: the allocator keeps part of the first rows' memory. A window is then a list,
    or small neighbouring lists, whose rows take at most half of the budget; the other half is for the consumer. A
    larger list is split again, by the first bits in which its hashes differ.

Memory
    While rows are gathered and written: the budget, a third of it for the copies that are written, and the largest
    batch once more; the given rows are released on the way. While windows are read: half of the budget.
    ``ROW_BYTES`` for each row and dictionaries are included, once for rows that were written together. A list with few
    rows and large dictionaries is not split, and may take more.
    The extents' places take about 500 bytes each, which is 1/1000 of the rows that were written.

One hash
    Rows of one hash that do not fit are a window whose rows are read from the file each time that one iterates, at
    most 1/32 of the budget at a time. Keys that are not equal may share a hash.

Disk
    The scratch files hold all rows if one window does not hold them, once more for a list while it is split, and are
    freed as the windows advance, and with the process at the latest. When they cannot be written, the task fails with
    OutOfBudget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from flight_server.memory import allocator

from .gathered import Gathered
from .hash_lists import Extent, HashFile, HashLists, KeyHashes, weight_bytes
from .task_memory import TaskMemory

_SMALL = 8
"""Of a window's room: smaller lists are one window with their neighbours."""
_SPLIT = 128
"""Of a window's room: lists with fewer rows are not split."""


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

    def taken(self) -> list[pa.RecordBatch]:
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
        for batch in self._file.read(iter(self._extents)):
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
    spilled = _gather(sides, gathered, hashes, memory)
    if spilled is None:
        found = tuple(Rows(each.batches) for each in gathered)
        # A consumer that releases a side's rows frees their memory.
        for each in gathered:
            each.clear()
        yield Window(found)
    else:
        yield from spilled.windows()


def _gather(
    sides: Sequence[Iterator[pa.RecordBatch]],
    gathered: Sequence[Gathered],
    hashes: Sequence[KeyHashes],
    memory: TaskMemory,
) -> _Spilled | None:
    """Read all sides: None if they fit, and are in ``gathered``."""
    spilled: _Spilled | None = None
    room_bytes = memory.budget_bytes
    for each, side in zip(gathered, sides, strict=True):
        for batch in side:
            if not batch.num_rows:
                continue
            each.add(batch)
            if sum(one.weight_bytes for one in gathered) <= room_bytes:
                continue
            if 2 * sum(one.least_bytes for one in gathered) <= room_bytes:
                for one in gathered:
                    one.compact()
                continue
            if spilled is None:
                spilled = _Spilled(hashes, memory)
                # The allocator keeps part of the first rows' memory.
                room_bytes //= 2
            spilled.write(gathered)
    if spilled is not None:
        spilled.write(gathered)
    return spilled


class _Spilled:
    """The rows of all sides, in a file."""

    def __init__(self, hashes: Sequence[KeyHashes], memory: TaskMemory) -> None:
        self._hashes = hashes
        self._room_bytes = memory.budget_bytes // 2
        self._files = [HashFile(memory) for _ in hashes]
        self._sides = list(map(HashLists, self._files, hashes))

    def write(self, gathered: Sequence[Gathered]) -> None:
        for lists, side in zip(self._sides, gathered, strict=True):
            batches = side.batches
            side.clear()
            lists.add(batches)
        _give_back()

    def windows(self) -> Iterator[Window]:
        sides, self._sides = self._sides, []
        yield from self._windows(sides)

    def _windows(self, sides: Sequence[HashLists]) -> Iterator[Window]:
        for extents in _neighbours(sides, self._room_bytes // _SMALL):
            every = [extent for side in extents for extent in side]
            low, high = min(extent.low for extent in every), max(extent.high for extent in every)
            fits = sum(map(weight_bytes, extents)) <= self._room_bytes
            # Fewer rows in each list would be read with as large dictionaries.
            fits = fits or sum(extent.rows_bytes for extent in every) <= self._room_bytes // _SPLIT
            del every
            if fits or low == high:
                yield from self._window(extents, one_hash=not fits)
                continue
            deeper = [
                HashLists(file, each, low, high) for file, each in zip(self._files, self._hashes, strict=True)
            ]
            for lists, side in zip(deeper, extents, strict=True):
                lists.move(side)
            _give_back()
            yield from self._windows(deeper)

    def _window(self, extents: Sequence[list[Extent]], *, one_hash: bool) -> Iterator[Window]:
        if one_hash:
            sides: tuple[Rows, ...] = tuple(map(_ReadAgain, self._files, extents))
        else:
            sides = tuple(
                Rows(list(file.read(iter(side)))) for file, side in zip(self._files, extents, strict=True)
            )
        del extents
        try:
            yield Window(sides, one_hash=one_hash)
        finally:
            for rows in sides:
                rows.release()
        _give_back()


def _neighbours(sides: Sequence[HashLists], size_bytes: int) -> Iterator[list[list[Extent]]]:
    """Each side's extents of one list, or of neighbouring lists that take at most this much together. Those that are
    given are no longer in the lists.
    """
    waiting: list[list[Extent]] = [[] for _ in sides]
    for number in range(len(sides[0].lists)):
        here = [side.lists[number] for side in sides]
        both_bytes = sum(weight_bytes([*one, *other]) for one, other in zip(waiting, here, strict=True))
        if any(waiting) and both_bytes > size_bytes:
            yield waiting
            waiting = [[] for _ in sides]
        for side, extents in zip(waiting, here, strict=True):
            side.extend(extents)
            extents.clear()
    if any(waiting):
        yield waiting


def _give_back() -> None:
    """Return freed memory to the system. Arrow's allocator would keep about as much as the budget, for a while."""
    pa.default_memory_pool().release_unused()
    allocator.give_back()
