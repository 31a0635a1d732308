"""A partition's rows in windows: the rows of a key are all in one window, on every side.

Guarantee: every row of every side is in exactly one window, and rows whose keys have equal hashes are in one window.
The rows of one hash come in the order in which they were given.

How
    Batches are gathered in RAM, with all memory that they keep alive (``gathered``). If all sides fit the budget
    together, they are one window, in the given order, and no hash is computed. Beyond the budget the gathered rows
    are sorted by hash and written to a scratch file as two runs (``hash_runs``), and all later rows in runs of half
    the budget: the allocator keeps part of what the first rows took. A window is then a range of hashes, read from
    all runs, whose rows take at most half of the budget; the other half is for the consumer. More than ``MAX_RUNS``
    runs are first merged to fewer, because each window reads a piece of each run.

Memory
    While rows are gathered and written: the budget, 1/32 of it three times for rows that are copied into their order,
    and the batch that is being added. While windows are read: half of the budget, and one piece. ``ROW_BYTES`` for
    each row and dictionaries are included. A piece is 1/256 of the budget, or one row if that is larger; so a window
    is at most half of the budget, or one row of each run. The runs' index takes about 500 bytes for each piece.

One hash
    Rows of one hash that do not fit are a window whose rows are read from the file each time that one iterates, a
    piece at a time. Keys that are not equal may share a hash.

Disk
    The scratch files hold what was written beyond the budget, once more for each merge of runs, and are freed as the
    windows advance, and with the process at the latest. When they cannot be written, the task fails with OutOfBudget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from flight_server.memory import allocator

from .gathered import Gathered
from .hash_runs import KeyHashes, Run, RunFile, hash_ranges, without_hashes
from .task_memory import TaskMemory

PIECES = 256
"""Of the budget: the size of what is read at once from a run."""

MAX_RUNS = 64


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
    """Rows that are read from the file each time."""

    def __init__(self, rows: int, size_bytes: int, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        super().__init__(())
        self.rows, self.size_bytes, self._read = rows, size_bytes, read

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        reading = self._read()
        while True:
            # Before each read: the pieces of released rows are gone, and the rest would look like the end.
            super().__iter__()
            batch = next(reading, None)
            if batch is None:
                return
            yield batch


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
        hashes: of each side, what gives the 64-bit hash of each row's keys. Equal keys must have equal hashes on all
            sides.

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
                spilled.write(gathered, runs=2)
                # The allocator keeps part of what the first rows took.
                room_bytes //= 2
            else:
                spilled.write(gathered)
    if spilled is not None:
        spilled.write(gathered)
    return spilled


class _Spilled:
    """The runs of all sides."""

    def __init__(self, hashes: Sequence[KeyHashes], memory: TaskMemory) -> None:
        self._hashes = hashes
        self._memory = memory
        self._room_bytes = memory.budget_bytes // 2
        self._file = RunFile(memory.scratch_dir, memory.budget_bytes // PIECES)
        self._sides: list[list[Run]] = [[] for _ in hashes]

    def write(self, gathered: Sequence[Gathered], runs: int = 1) -> None:
        """Write all rows, each side's in so many runs, and hold none."""
        with _Counted(self._file, self._memory):
            for found, hashes, side in zip(self._sides, self._hashes, gathered, strict=True):
                batches = side.batches
                side.clear()
                found.extend(self._file.write(batches, hashes, runs))
        _give_back()

    def windows(self) -> Iterator[Window]:
        with _Counted(self._file, self._memory):
            self._merge()
        every = [run for runs in self._sides for run in runs]
        for low, high, fits in hash_ranges(every, self._room_bytes):
            sides = tuple(self._rows(runs, low, high, fits=fits) for runs in self._sides)
            if any(rows.rows for rows in sides):
                yield Window(sides, one_hash=not fits)
            for rows in sides:
                rows.release()
            for run in every:
                run.forget(high)
            _give_back()

    def _rows(self, runs: Sequence[Run], low: int, high: int, *, fits: bool) -> Rows:
        def read() -> Iterator[pa.RecordBatch]:
            return map(without_hashes, self._read(runs, low, high))

        if fits:
            return Rows(list(read()))
        rows = size_bytes = 0
        for piece in (piece for run in runs for piece in run.between(low, high)):
            if low <= piece.first and piece.last <= high:
                rows, size_bytes = rows + piece.rows, size_bytes + piece.size_bytes
            else:
                batch = without_hashes(self._file.read(piece, low, high))
                rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        return _ReadAgain(rows, size_bytes, read)

    def _read(self, runs: Sequence[Run], low: int, high: int) -> Iterator[pa.RecordBatch]:
        for run in runs:
            for piece in run.between(low, high):
                batch = self._file.read(piece, low, high)
                if batch.num_rows:
                    yield batch

    def _merge(self) -> None:
        """Merge neighbouring runs of a side, so that the order within a hash stays, until there are few enough."""
        most = max(2, MAX_RUNS // len(self._sides))
        for runs in self._sides:
            while len(runs) > most and runs[0].mergeable:
                runs[:] = [self._merged(runs[at : at + most]) for at in range(0, len(runs), most)]

    def _merged(self, runs: Sequence[Run]) -> Run:
        merged = Run()
        for low, high, fits in hash_ranges(runs, self._room_bytes):
            batches = self._read(runs, low, high)
            if fits:
                self._file.append_sorted(merged, list(batches))
            else:
                for batch in batches:
                    self._file.append(merged, batch)
            for run in runs:
                run.forget(high)
        merged.index()
        return merged


def _give_back() -> None:
    """Return freed memory to the system. Arrow's allocator would keep about as much as the budget, for a while."""
    pa.default_memory_pool().release_unused()
    allocator.give_back()


class _Counted:
    """Adds what is written meanwhile to the task's count, also when writing fails."""

    def __init__(self, file: RunFile, memory: TaskMemory) -> None:
        self._file, self._memory = file, memory
        self._before = file.written_bytes

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._memory.spilled_bytes += self._file.written_bytes - self._before
