"""Copies rows of a record batch by position.

A result has its own buffers with its rows only.

Lists
    Arrow copies a list element by element. Lists of fixed-width values without nulls (above all, vectors) are
    presented to it as byte strings over the same buffers, which it copies a row at a time: about five times faster
    for vectors of 256 floats.

----
The rows of many batches, numbered through, to be picked in any order without first being joined.

Joining them would double the memory; so rows are picked batch by batch, and only the picked ones are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import array_over, compute, offsets

from .sizes import row_bytes

SHORTEST_BYTES = 32
"""Lists of fewer bytes on average are copied as lists."""


class Picker:
    """Picks rows of `batch`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._schema = batch.schema
        self._as_bytes = [_is_vector(column) for column in batch.columns]
        columns = [
            _to_bytes(column) if as_bytes else column
            for column, as_bytes in zip(batch.columns, self._as_bytes, strict=True)
        ]
        self._rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def take(self, positions: NDArray[np.int64], valid: NDArray[np.bool_] | None = None) -> pa.RecordBatch:
        """The rows at `positions`, in that order; nulls in all columns where `valid` is not set. Positions are not
        checked, and those of nulls are not read.
        """
        at = array_over(positions)
        if valid is not None:
            bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
            at = pa.Array.from_buffers(at.type, len(at), [bits, at.buffers()[1]])
        picked = compute().take(self._rows, at, boundscheck=False)
        columns = [
            _to_lists(column, field.type) if as_bytes else column
            for column, field, as_bytes in zip(picked.columns, self._schema, self._as_bytes, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def spread(batch: pa.RecordBatch, has: NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows, in order, at the places whose flags are set, and nulls in all columns at the others."""
    if not batch.num_rows:
        return pa.RecordBatch.from_arrays(
            [pa.nulls(len(has), kind) for kind in batch.schema.types], schema=batch.schema
        )
    return Picker(batch).take(np.where(has, np.cumsum(has) - 1, 0), has)


def _is_vector(column: pa.Array) -> bool:
    kind = column.type
    if not (types.is_list(kind) or types.is_large_list(kind)):
        return False
    element = kind.value_type
    if not types.is_primitive(element) or element.bit_width % 8 or column.values.null_count:
        return False
    # Short lists gain little, and their offsets get wider.
    return int(column.nbytes) >= SHORTEST_BYTES * len(column) > 0


def _to_bytes(column: pa.Array) -> pa.Array:
    validity = column.buffers()[0]
    elements = column.values
    width = elements.type.bit_width // 8
    bounds = (offsets(column).astype(np.int64) + elements.offset) * width
    if column.offset and validity is not None:
        validity = pa.array(column.is_valid()).buffers()[1]
    buffers = [validity, pa.py_buffer(bounds), elements.buffers()[1]]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)


def _to_lists(column: pa.Array, kind: pa.DataType) -> pa.Array:
    validity, _, data = column.buffers()
    width = kind.value_type.bit_width // 8
    bounds = offsets(column) // width
    bounds = bounds.astype(np.int64 if types.is_large_list(kind) else np.int32, copy=False)
    elements = pa.Array.from_buffers(kind.value_type, int(bounds[-1]), [None, data])
    return pa.Array.from_buffers(
        kind, len(column), [validity, pa.py_buffer(bounds)], column.null_count, children=[elements]
    )


SMALL_BYTES = 1024 * 1024
"""Smaller neighbouring batches are joined, up to this size."""


class NumberedRows:
    """The rows of ``batches``, of one schema, without the batches that have none."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.batches = [batch for batch in batches if batch.num_rows]
        counts = [batch.num_rows for batch in self.batches]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.count = int(self._starts[-1])
        self._pickers = dict[int, Picker]()

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each row, rounded up."""
        sizes = np.empty(self.count, np.int64)
        for batch, start in zip(self.batches, self._starts.tolist(), strict=False):
            sizes[start : start + batch.num_rows] = row_bytes(batch)
        return sizes

    def bytes_before(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of all rows before each place of ``order``, and of all rows."""
        before = np.zeros(len(order) + 1, np.int64)
        np.take(self.sizes(), order, out=before[1:], mode="clip")  # "raise" makes a copy
        np.cumsum(before[1:], out=before[1:])
        return before

    def take(self, numbers: NDArray[np.int64]) -> pa.RecordBatch:
        """A copy of the rows of these numbers, at least one, in that order. Raises ArrowInvalid: a column's rows are
        too much text for its offsets.
        """
        if len(self.batches) == 1:
            return self._take_of(0, numbers)
        return picked(np.searchsorted(self._starts, numbers, side="right") - 1, numbers, self._take_of)

    def _take_of(self, index: int, numbers: NDArray[np.int64]) -> pa.RecordBatch:
        if (picker := self._pickers.get(index)) is None:
            picker = self._pickers[index] = Picker(self.batches[index])
        return picker.take(numbers - self._starts[index] if index else numbers)


def picked(
    parts: NDArray[np.integer[Any]],
    numbers: NDArray[np.int64],
    take: Callable[[int, NDArray[np.int64]], pa.RecordBatch],
) -> pa.RecordBatch:
    """A copy of rows of several parts, in order: of each the part, and the number by which ``take`` finds it there.
    Part 0 is asked for no rows if there are none.
    """
    by_part = np.argsort(parts, kind="stable")
    bounds = np.searchsorted(parts[by_part], np.arange(parts.max(initial=0) + 2))
    pieces = [
        take(part, numbers[by_part[start:end]])
        for part, (start, end) in enumerate(pairwise(bounds.tolist()))
        if start < end or not len(numbers)
    ]
    if len(pieces) == 1:
        return pieces[0]
    places = np.empty(len(numbers), np.int64)
    places[by_part] = np.arange(len(numbers))
    return Picker(pa.concat_batches(pieces)).take(places)


def cuts(before: NDArray[np.int64], start: int, end: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Bounds of pieces of the rows from ``start`` to before ``end``, each of at most this size or of one row.
    ``before`` has the bytes before each row, and after the last one.
    """
    while start < end:
        fitting = int(np.searchsorted(before, before[start] + size_bytes, side="right")) - 1
        cut = min(end, max(fitting, start + 1))
        yield start, cut
        start = cut


def together(
    batches: list[pa.RecordBatch], size_bytes: int = SMALL_BYTES, *, copied: bool = False
) -> list[pa.RecordBatch]:
    """The batches, neighbours joined up to this size, without empty ones. Empties the given list, so that joined
    batches are released on the way. With ``copied`` none shares memory with the given ones.
    """
    whole: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    small_bytes = 0
    batches.reverse()
    while batches:
        batch = batches.pop()
        if small and small_bytes + batch.nbytes > size_bytes:
            whole.extend(joined(small, copied=copied))
            small, small_bytes = [], 0
        if batch.num_rows:
            small.append(batch)
            small_bytes += batch.nbytes
    if small:
        whole.extend(joined(small, copied=copied))
    return whole


def gathered(batches: Iterable[pa.RecordBatch], rows: int, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows, in order; neighbouring batches below so many rows and bytes are joined until they are not."""
    small: list[pa.RecordBatch] = []
    small_rows = small_bytes = 0
    for batch in batches:
        batch_bytes = batch.nbytes
        is_small = batch.num_rows < rows and batch_bytes < size_bytes
        if is_small:
            small.append(batch)
            small_rows, small_bytes = small_rows + batch.num_rows, small_bytes + batch_bytes
        if small and not (is_small and small_rows < rows and small_bytes < size_bytes):
            yield from joined(small)
            small, small_rows, small_bytes = [], 0, 0
        if not is_small:
            yield batch
    if small:
        yield from joined(small)


def joined(batches: list[pa.RecordBatch], *, copied: bool = False) -> list[pa.RecordBatch]:
    """The rows as one batch, or the batches where they are too much text for the offsets of one."""
    if len(batches) == 1 and not copied:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowInvalid:
        return batches
