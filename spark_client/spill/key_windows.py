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
    While rows are gathered and written: the budget, a quarter of it for the copies that are written, and the largest
    batch once more; the given rows are released on the way. While windows are read: half of the budget.
    ``ROW_BYTES`` for each row and dictionaries are included, once for rows that were written together. A list with few
    rows and large dictionaries is not split, and may take more.
    The extents' places take about 500 bytes each, which is 1/1000 of the rows that were written.

One hash
    Rows of one hash that do not fit are a window whose rows are read from the file each time that one iterates, at
    most 1/32 of the budget at a time. Keys that are not equal may share a hash.

Disk
    The scratch file holds all rows if one window does not hold them, once more for a list while it is split, and is
    freed as the windows advance, and with the process at the latest. When it cannot be written, the task fails with
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
    found = tuple(Rows(each.batches) for each in gathered)
    # A consumer that releases a side's rows frees their memory.
    for each in gathered:
        each.clear()
    yield Window(found)


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
            if sum(one.weight_bytes for one in gathered) <= room_bytes:
                continue
            if 2 * sum(one.least_bytes for one in gathered) <= room_bytes:
                for one in gathered:
                    one.compact()
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
        batches = side.batches
        side.clear()
        lists.add(number, batches)
    _give_back()


def _windows(lists: HashLists, room_bytes: int) -> Iterator[Window]:
    """The windows of these lists, which are used up."""
    file = lists.file
    for extents in lists.neighbours(room_bytes // _SMALL):
        low, high = min(extent.low for extent in extents), max(extent.high for extent in extents)
        # Fewer rows in each list would be read with as large dictionaries.
        few = sum(extent.rows_bytes for extent in extents) <= room_bytes // _SPLIT
        fits = few or weight_bytes(extents) <= room_bytes
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
