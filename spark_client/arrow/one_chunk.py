"""A table's columns in one piece of memory or file, each in one chunk, written batch by batch.

Guarantee: a table that :meth:`OneChunk.read` returns over the bytes that :meth:`OneChunk.append` wrote has the rows of
the batches, in their order, each column in one chunk and without a copy. The place of each byte follows from the
schema, the rows and the *counts*: of each column of variable size its bytes or elements over all batches
(:func:`counts`). Their sum is known before the first byte is written, so no batch is kept and none is written twice.

Layout: the buffers in Arrow's order (validity, offsets, values or bits; then the children), each at a multiple of 64
bytes, validity also where nothing is null; then as int64 the rows, and the nulls of each column and child.

Not of every type: not of dictionaries, views, unions, run-end encoded and extension types, nor of more than 2**31 - 1
bytes or elements under 32-bit offsets (:func:`fits_one_chunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import is_bytes, offsets

_ALIGNED_BYTES = 64
_BITS = 1 << 20
Write = Callable[[int, Any], object]


def counts(batch: pa.RecordBatch | pa.Table) -> list[int]:
    """Of each column and child of variable size, in the order of the schema, its bytes or elements. Of types that
    :func:`fits_one_chunk` takes.
    """
    if isinstance(batch, pa.Table):
        none = [0 for each in batch.schema.types for _ in _offset_widths(each)]
        return [sum(each) for each in zip(none, *map(counts, batch.to_batches()), strict=True)]
    return [count for column in batch.columns for count in _counts(column)]


def fits_one_chunk(schema: pa.Schema, counts: Sequence[int] = ()) -> bool:
    """Whether a table of this schema, and of these counts, can be in one chunk."""
    if not schema.types or not all(map(_is_known, schema.types)):
        return False
    widths = [width for each in schema.types for width in _offset_widths(each)]
    return all(width == 8 or count < 1 << 31 for width, count in zip(widths, counts, strict=False))


class OneChunk:
    """The layout of a table of so many rows."""

    def __init__(self, schema: pa.Schema, rows: int, counts: Sequence[int]) -> None:
        left = iter(counts)
        place = _Place()
        self._schema = schema
        self._rows = rows
        self._columns = [_Column(each, rows, left, place) for each in schema.types]
        self._end = place.end
        self._nodes = [node for column in self._columns for node in column.walk()]
        self.size_bytes = self._end + 8 * (1 + len(self._nodes))

    def append(self, batch: pa.RecordBatch, write: Write) -> None:
        """Write the batch's rows by calls of ``write`` with a position and the bytes there."""
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.append(array, write)

    def finish(self, write: Write) -> None:
        """Write the bytes behind the last batch. Raises ValueError: the batches did not have these rows and counts."""
        for node in self._nodes:
            node.finish(write)
        write(self._end, np.array([self._rows, *(node.nulls for node in self._nodes)], np.int64))

    def read(self, data: pa.Buffer) -> pa.Table:
        """The table over the bytes. Raises ValueError: they are of another table, or not all there."""
        if data.size != self.size_bytes:
            raise ValueError(f"has {data.size} bytes instead of {self.size_bytes}")
        rows, *null_counts = np.frombuffer(data, np.int64, offset=self._end).tolist()
        if rows != self._rows:
            raise ValueError(f"has {rows} rows instead of {self._rows}")
        nulls = iter(null_counts)
        return pa.Table.from_arrays([each.read(data, nulls) for each in self._columns], schema=self._schema)


class _Place:
    end = 0

    def take(self, size_bytes: int) -> int:
        at = self.end
        self.end += -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        return at


class _Bits:
    """A buffer of bits that is written from its beginning on."""

    def __init__(self, rows: int, place: _Place) -> None:
        self._at = place.take((rows + 7) // 8)
        self.start, self.size_bytes = self._at, (rows + 7) // 8
        self._pending = np.empty(0, bool)

    def append(self, bits: NDArray[np.bool_], write: Write) -> None:
        bits = np.concatenate([self._pending, bits])
        whole = len(bits) // 8 * 8
        self._pending = bits[whole:]
        self._put(bits[:whole], write)

    def finish(self, write: Write) -> None:
        self._put(self._pending, write)
        self._pending = self._pending[:0]

    def _put(self, bits: NDArray[np.bool_], write: Write) -> None:
        if len(bits):
            packed = np.packbits(bits, bitorder="little")
            write(self._at, packed)
            self._at += len(packed)


class _Column:
    def __init__(self, kind: pa.DataType, rows: int, left: Iterator[int], place: _Place) -> None:
        self.nulls = 0
        self._type, self._rows = kind, rows
        self._width = _offset_width(kind)
        self._count = next(left) if self._width else 0
        self._done = self._counted = 0
        self._validity = _Bits(0 if pa.types.is_null(kind) else rows, place)
        self._bits = _Bits(rows, place) if pa.types.is_boolean(kind) else None
        self._offsets_at = place.take(self._width * (rows + 1) if self._width else 0)
        self._values_bytes = self._count if is_bytes(kind) else rows * _value_bytes(kind)
        self._values_at = self._values_to = place.take(self._values_bytes)
        inner = self._count if self._width else rows * getattr(kind, "list_size", 1)
        self._children = [_Column(each, inner, left, place) for each in _child_types(kind)]

    def walk(self) -> Iterator[_Column]:
        yield self
        for child in self._children:
            yield from child.walk()

    def append(self, array: Any, write: Write) -> None:
        if not len(array) or pa.types.is_null(self._type):
            return
        self._say_valid(array, write)
        buffers = array.buffers()
        if self._bits is not None:
            self._bits.append(array.fill_null(False).to_numpy(zero_copy_only=False), write)  # noqa: FBT003 - Arrow's signature
        elif self._width:
            bounds = offsets(array)
            first, count = int(bounds[0]), int(bounds[-1] - bounds[0])
            moved = bounds[1:] + (self._counted - first)
            write(self._offsets_at + self._width * (self._done + 1), moved.astype(bounds.dtype))
            if is_bytes(self._type) and count:
                self._put(buffers[2].slice(first, count), write)
            self._counted += count
        elif self._values_bytes:
            width = _value_bytes(self._type)
            self._put(buffers[1].slice(array.offset * width, len(array) * width), write)
        self._done += len(array)
        for child, inner in zip(self._children, _children(array), strict=True):
            child.append(inner, write)

    def _say_valid(self, array: Any, write: Write) -> None:
        # Not written before the first null: a matrix has as many bits as values.
        if not self.nulls and array.null_count:
            for start in range(0, self._done, _BITS):
                self._validity.append(np.ones(min(_BITS, self._done - start), bool), write)
        self.nulls += array.null_count
        if self.nulls:
            self._validity.append(array.is_valid().to_numpy(zero_copy_only=False), write)

    def _put(self, data: pa.Buffer, write: Write) -> None:
        write(self._values_to, data)
        self._values_to += data.size

    def finish(self, write: Write) -> None:
        if self._counted != self._count or (self._done != self._rows and not pa.types.is_null(self._type)):
            raise ValueError(
                f"{self._done} rows of {self._rows} and {self._counted} bytes or elements of {self._count} came of a "
                f"column of {self._type}"
            )
        self._validity.finish(write)
        if self._bits is not None:
            self._bits.finish(write)

    def read(self, data: pa.Buffer, nulls: Iterator[int]) -> Any:
        count, rows = next(nulls), self._rows
        if pa.types.is_null(self._type):
            return pa.nulls(rows)
        validity = self._validity
        buffers = [data.slice(validity.start, validity.size_bytes) if count else None]
        if self._bits is not None:
            buffers.append(data.slice(self._bits.start, self._bits.size_bytes))
        if self._width:
            buffers.append(data.slice(self._offsets_at, self._width * (rows + 1)))
        if self._bits is None and not self._children:
            buffers.append(data.slice(self._values_at, self._values_bytes))
        children = [each.read(data, nulls) for each in self._children]
        return pa.Array.from_buffers(self._type, rows, buffers, count, children=children)


def _value_bytes(kind: pa.DataType) -> int:
    """Bytes of a value; 0 for types of variable size, of bits, and without values of their own."""
    of = pa.types
    if _offset_width(kind) or kind.num_fields or of.is_boolean(kind) or of.is_null(kind):
        return 0
    return int(kind.bit_width // 8)


def _offset_width(kind: pa.DataType) -> int:
    """Bytes of an offset; 0 for types without any."""
    of = pa.types
    if of.is_large_binary(kind) or of.is_large_string(kind) or of.is_large_list(kind):
        return 8
    return 4 if is_bytes(kind) or of.is_list(kind) or of.is_map(kind) else 0


def _offset_widths(kind: pa.DataType) -> Iterator[int]:
    if width := _offset_width(kind):
        yield width
    for child in _child_types(kind):
        yield from _offset_widths(child)


def _child_types(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(index).type for index in range(kind.num_fields)]


def _is_known(kind: pa.DataType) -> bool:
    of = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return False
    nested = (of.is_struct, of.is_list, of.is_large_list, of.is_fixed_size_list, of.is_map)
    if any(is_kind(kind) for is_kind in nested):
        return all(map(_is_known, _child_types(kind)))
    flat = (of.is_null, of.is_primitive, of.is_fixed_size_binary, of.is_decimal, is_bytes)
    return any(is_kind(kind) for is_kind in flat)


def _children(array: Any) -> list[Any]:
    """The arrays inside, without the values that the array's slice leaves out."""
    kind = array.type
    if pa.types.is_struct(kind):
        return [array.field(index) for index in range(kind.num_fields)]
    if pa.types.is_fixed_size_list(kind):
        return [array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)]
    if kind.num_fields:
        bounds = offsets(array)
        return [array.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))]
    return []


def _counts(array: Any) -> Iterator[int]:
    kind = array.type
    if not len(array):
        yield from (0 for _ in _offset_widths(kind))
        return
    if _offset_width(kind):
        bounds = offsets(array)
        yield int(bounds[-1] - bounds[0])
    for child in _children(array):
        yield from _counts(child)
