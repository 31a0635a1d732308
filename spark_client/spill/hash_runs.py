"""Rows sorted by the 64-bit hash of their keys, in pieces in a scratch file.

Guarantee: the rows of one hash come out of a run in the order in which they went in.

Format
    A piece is one extent of the scratch (``scratch``): one record batch with the side's columns and, last, the
    rows' hashes, ascending. In RAM a run has only the first and last hash, the row count and the size of each piece:
    about 500 bytes for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import (
    NumberedRows,
    array_over,
    cuts,
    has_dictionary,
    held_dictionaries,
    own_bytes,
    together,
    values,
)

from .gathered import ROW_BYTES
from .scratch import Parked, Scratch

KeyHashes = Callable[[pa.RecordBatch], NDArray[np.uint64]]

TAKEN_PIECES = 8
"""Rows that are copied into their order at once, in pieces."""

_HASH = pa.field("", pa.uint64(), nullable=False)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one extent; ``size_bytes`` is theirs in RAM, without hashes."""

    first: int
    last: int
    rows: int
    size_bytes: int
    parked: Parked

    @property
    def weight_bytes(self) -> int:
        """What the rows take in RAM while they are sorted."""
        return self.size_bytes + self.rows * ROW_BYTES


class Run:
    """Pieces of one side, in the order of their hashes: each begins with the hash with which the one before it ends,
    or a higher one. ``mergeable`` is False if its rows have dictionaries, which may not fit together with others.
    """

    def __init__(self, *, mergeable: bool = True) -> None:
        self.mergeable = mergeable
        self.pieces: list[Piece] = []
        self._firsts = self._lasts = np.empty(0, np.uint64)

    def index(self) -> None:
        """Make the arrays by which pieces are found, after the last one was appended."""
        self._firsts = np.array([piece.first for piece in self.pieces], np.uint64)
        self._lasts = np.array([piece.last for piece in self.pieces], np.uint64)

    def between(self, low: int, high: int) -> list[Piece]:
        """The pieces that may have rows of these hashes, both included."""
        start = int(np.searchsorted(self._lasts, np.uint64(low), side="left"))
        end = int(np.searchsorted(self._firsts, np.uint64(high), side="right"))
        return self.pieces[start:end]

    def forget(self, high: int) -> None:
        """Release the pieces whose hashes are all at most this one."""
        count = int(np.searchsorted(self._lasts, np.uint64(high), side="right"))
        del self.pieces[:count]
        self._firsts, self._lasts = self._firsts[count:], self._lasts[count:]


class RunFile:
    """Writes and reads the runs of one task.

    Args:
        piece_bytes: about the size of a piece, or one row.
    """

    def __init__(self, scratch_dir: str | None, piece_bytes: int) -> None:
        self._scratch = Scratch(scratch_dir)
        self._piece_bytes = max(1, piece_bytes)

    @property
    def written_bytes(self) -> int:
        return self._scratch.written_bytes

    def write(self, batches: list[pa.RecordBatch], hashes: KeyHashes, runs: int = 1) -> list[Run]:
        """The rows in so many runs; in a run for each batch if they have dictionaries. Empties the list.

        Raises:
            OutOfBudget: the file cannot be written.
        """
        if not batches:
            return []
        mergeable = not any(has_dictionary(column.type) for column in batches[0].schema)
        if mergeable:
            batches = together(batches)
        most_rows = -(-sum(batch.num_rows for batch in batches) // runs) if mergeable else 1
        batches.reverse()
        found = []
        while batches:
            run, hashed, rows = Run(mergeable=mergeable), list[pa.RecordBatch](), 0
            while batches and rows < most_rows:
                batch = batches.pop()
                hashed.append(_with_hashes(batch, hashes(batch)))
                rows += batch.num_rows
            self.append_sorted(run, hashed)
            run.index()
            found.append(run)
        return found

    def append_sorted(self, run: Run, hashed: list[pa.RecordBatch]) -> None:
        """Sort the rows, whose last column has the hashes, and append them to the run, whose hashes are not above
        theirs. The same errors.
        """
        rows = NumberedRows(hashed)
        if not rows.count:
            return
        order = np.argsort(np.concatenate([_hashes(batch) for batch in rows.batches]), kind="stable")
        before = rows.bytes_before(order)
        for start, end in cuts(before, 0, rows.count, self._piece_bytes * TAKEN_PIECES):
            taken = rows.take(order[start:end])
            for first, last in cuts(before, start, end, self._piece_bytes):
                self.append(run, taken.slice(first - start, last - first))

    def append(self, run: Run, hashed: pa.RecordBatch) -> None:
        """Append a sorted batch, whose hashes are not below the run's, as one piece. The same errors."""
        hashes = _hashes(hashed)
        dictionaries = sum(held_dictionaries(hashed).values())
        size_bytes = own_bytes(hashed) - hashes.nbytes + dictionaries
        parked = self._scratch.park([hashed])
        run.pieces.append(Piece(int(hashes[0]), int(hashes[-1]), hashed.num_rows, size_bytes, parked))

    def read(self, piece: Piece, low: int, high: int) -> pa.RecordBatch:
        """The piece's rows of these hashes, both included, with the hashes as last column: maybe none.

        Raises:
            CorruptFrame: the file's bytes are not those that were written.
        """
        (batch,) = self._scratch.read(piece.parked)
        if low <= piece.first and piece.last <= high:
            return batch
        hashes = _hashes(batch)
        start = int(np.searchsorted(hashes, np.uint64(low), side="left"))
        end = int(np.searchsorted(hashes, np.uint64(high), side="right"))
        # A copy: a slice would keep the whole piece.
        return pa.concat_batches([batch.slice(start, end - start)])


def hash_ranges(runs: Sequence[Run], room_bytes: int) -> Iterator[tuple[int, int, bool]]:
    """Ranges of hashes, both ends included, that follow each other and cover all rows of the runs; and whether a
    range fits the room. One that does not is a single hash.

    A range's size is found from the index alone: pieces that are only partly in it count whole. A range between two
    ends of pieces has at most one piece of each run, and is taken to fit.
    """
    pieces = [piece for run in runs for piece in run.pieces]
    weights = np.array([piece.weight_bytes for piece in pieces], np.int64)
    begun, begun_bytes = _summed(np.array([piece.first for piece in pieces], np.uint64), weights)
    ended, ended_bytes = _summed(np.array([piece.last for piece in pieces], np.uint64), weights)
    # Else they would stay on the disk after the runs have released them.
    del pieces
    ends = np.unique(ended)
    through_bytes = begun_bytes[np.searchsorted(begun, ends, side="right")]
    low = at = 0
    while at < len(ends):
        done_bytes = int(ended_bytes[np.searchsorted(ended, np.uint64(low), side="left")])
        fitting = int(np.searchsorted(through_bytes[at:], done_bytes + room_bytes, side="right"))
        if fitting:
            at += fitting
            high = int(ends[at - 1])
            yield low, high, True
        else:
            high = int(ends[at])
            if low < high:
                high -= 1
                yield low, high, True
            else:
                at += 1
                yield low, high, False
        low = high + 1


def _summed(
    hashes: NDArray[np.uint64], weights: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hashes in order, and the weights of all before each place."""
    order = np.argsort(hashes, kind="stable")
    return hashes[order], np.concatenate([[0], np.cumsum(weights[order])])


def without_hashes(hashed: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as it was given."""
    *columns, _ = hashed.columns
    schema = pa.schema(list(hashed.schema)[:-1], hashed.schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_hashes(batch: pa.RecordBatch, hashes: NDArray[np.uint64]) -> pa.RecordBatch:
    schema = pa.schema([*batch.schema, _HASH], batch.schema.metadata)
    return pa.RecordBatch.from_arrays([*batch.columns, array_over(hashes)], schema=schema)


def _hashes(hashed: pa.RecordBatch) -> NDArray[np.uint64]:
    return values(hashed.column(hashed.num_columns - 1), np.uint64)
