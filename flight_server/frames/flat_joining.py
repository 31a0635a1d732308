"""Flat joining: frames of numbers, times, texts, bytes or dictionaries' indices as one message, without Arrow, in one
copy.

Guarantee: as of ``joining``. :meth:`FlatColumns.join` gives None where it is not certain, or where bits would have to
be shifted: if a column has nulls or booleans, and eight does not divide the rows of a frame other than the last.

How
    The values of a column in several batches are one after the other what they are in one batch; only the offsets of
    texts count on from the frame before. So the message is joined from slices of the frames' bodies, and a header of
    its own: for a megabyte in about a third of the time that Arrow takes.

    Message       0 version   1 header_type   2 header   3 bodyLength
    RecordBatch   0 length    1 nodes (length, null_count)   2 buffers (offset, length)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from flight_server.protocol import BadFrame, ipc_framing, wire

_Part = bytes | memoryview

# The header up to its nodes: both tables, each behind the list of its fields' places.
_HEAD = struct.Struct("<I4x 6H4x iHBxqI4x 5H6x iIqI4x 4xI")
_MESSAGE_PLACES, _MESSAGE, _BATCH_PLACES, _BATCH, _NODES = 8, 24, 48, 64, 92
_VERSION_5 = 4


class _Column(NamedTuple):
    """``bits`` of each value; or the bytes of each offset of texts, else 0."""

    bits: int = 0
    offset_bytes: int = 0

    @property
    def buffers(self) -> int:
        return 3 if self.offset_bytes else 2


_Place = tuple[int, int]  # first byte in a body, and the byte after the last


class _Layout(NamedTuple):
    """What a header says of its batch: of each column its nulls, and where in the body its validity is (if it has
    nulls), its values or offsets, and the bytes of texts.
    """

    rows: int
    nulls: tuple[int, ...]
    validity: tuple[_Place, ...]
    values: tuple[_Place, ...]
    texts: tuple[_Place, ...]


class _Batch(NamedTuple):
    layout: _Layout
    body: memoryview


class FlatColumns:
    """The columns of one schema."""

    def __init__(self, columns: Sequence[_Column]) -> None:
        self._columns = columns
        self._buffers = sum(column.buffers for column in columns)
        # The last header and size of a body: frames of as many rows of fixed width have the same.
        self._known: tuple[bytes, int, _Layout] | None = None

    @classmethod
    def of(cls, schema: pa.Schema) -> FlatColumns | None:
        """None for a schema with other columns."""
        columns = [_column(field.type) for field in schema]
        known = [column for column in columns if column is not None]
        return cls(known) if known and len(known) == len(columns) else None

    def join(self, frames: Sequence[wire.FlightData]) -> bytes | None:
        """The FlightData message of the frames' rows."""
        try:
            batches = [batch for batch in map(self._read, frames) if batch.layout.rows]
            bodies = self._bodies(batches)
        except (struct.error, ValueError, IndexError, BadFrame):
            return None
        if bodies is None or not batches:
            return None
        rows = sum(batch.layout.rows for batch in batches)
        nulls = [sum(counts) for counts in zip(*(batch.layout.nulls for batch in batches), strict=True)]
        places: list[int] = []
        pieces: list[_Part] = []
        body_bytes = 0
        for buffer in bodies:
            size_bytes = sum(map(len, buffer))
            places += (body_bytes, size_bytes)
            pieces += (*buffer, b"\0" * (-size_bytes % 8))
            body_bytes += size_bytes + -size_bytes % 8
        header = _header(rows, nulls, places, body_bytes)
        return b"".join((wire.field(2, header), wire.field_head(1000, body_bytes), *pieces))

    def _read(self, parts: wire.FlightData) -> _Batch:
        header, body_bytes = bytes(parts.header), len(parts.body)
        known = self._known
        if known is None or known[0] != header or known[1] != body_bytes:
            self._known = known = header, body_bytes, self._layout(header, body_bytes)
        return _Batch(known[2], parts.body)

    def _layout(self, header: bytes, body_bytes: int) -> _Layout:
        batch = ipc_framing.IpcHeader(header).message.table(2)
        if batch is None:
            raise ValueError("no batch")
        (nodes_at, nodes), (buffers_at, buffers) = batch.vector(1), batch.vector(2)
        if nodes != len(self._columns) or buffers != self._buffers:
            raise ValueError("other columns")
        counts = struct.unpack_from(f"<{2 * nodes}q", header, nodes_at)
        numbers = struct.unpack_from(f"<{2 * buffers}q", header, buffers_at)
        places = iter(tuple(zip(numbers[::2], numbers[1::2], strict=True)))
        rows, nulls = batch.long(0), counts[1::2]
        if rows < 0 or any(count != rows for count in counts[::2]):
            raise ValueError("columns of other lengths")
        if any(count < 0 for count in nulls):
            raise ValueError("nulls that were not counted")  # -1, which Arrow counts when it decodes them

        def place(size_bytes: int | None) -> _Place:
            """Of the next buffer the first bytes; None: all."""
            offset, length = next(places)
            size_bytes = length if size_bytes is None else size_bytes
            if not 0 <= size_bytes <= length or not 0 <= offset <= body_bytes - length:
                raise ValueError("a buffer outside of the body")
            return offset, offset + size_bytes

        validity, values, texts = list[_Place](), list[_Place](), list[_Place]()
        for column, count in zip(self._columns, nulls, strict=True) if rows else ():
            validity.append(place(-(-rows // 8)) if count else (next(places)[0], 0))
            if column.offset_bytes:
                values.append(place((rows + 1) * column.offset_bytes))
            else:
                values.append(place(-(-rows * column.bits // 8)))
            texts.append(place(None) if column.offset_bytes else (0, 0))
        return _Layout(rows, nulls, tuple(validity), tuple(values), tuple(texts))

    def _bodies(self, batches: Sequence[_Batch]) -> list[list[_Part]] | None:
        """The pieces of each buffer. None: bits would have to be shifted."""
        shifts = any(layout.rows % 8 for layout, _ in batches[:-1])
        found: list[list[_Part]] = []
        for number, column in enumerate(self._columns):
            has_nulls = any(layout.nulls[number] for layout, _ in batches)
            if shifts and (has_nulls or column.bits == 1):
                return None
            found.append([_validity(batch, number) for batch in batches] if has_nulls else [])
            places = [layout.values[number] for layout, _ in batches]
            values: list[_Part] = [
                body[start:stop] for (start, stop), (_, body) in zip(places, batches, strict=True)
            ]
            found += _texts(batches, number, values, column.offset_bytes) if column.offset_bytes else [values]
        return found


def _column(kind: pa.DataType) -> _Column | None:
    types = pa.types
    if types.is_dictionary(kind):
        return _column(kind.index_type)
    if types.is_string(kind) or types.is_binary(kind):
        return _Column(offset_bytes=4)
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return _Column(offset_bytes=8)
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return _Column(kind.bit_width) if kind.bit_width else None
    return None


def _validity(batch: _Batch, column: int) -> _Part:
    layout, body = batch
    start, stop = layout.validity[column]
    return body[start:stop] if layout.nulls[column] else b"\xff" * -(-layout.rows // 8)


def _texts(
    batches: Sequence[_Batch], column: int, offsets: Sequence[_Part], offset_bytes: int
) -> list[list[_Part]]:
    """The pieces of the offsets, counted on from batch to batch, and of the values."""
    counted: list[_Part] = [b"\0" * offset_bytes]
    values: list[_Part] = []
    total_bytes = 0
    for (layout, body), each in zip(batches, offsets, strict=True):
        own = np.frombuffer(each, f"<i{offset_bytes}")
        first, last = int(own[0]), int(own[-1])
        start, stop = layout.texts[column]
        if not 0 <= first <= last <= stop - start:
            raise ValueError("a text outside of its buffer")
        values.append(body[start + first : start + last])
        counted.append((own[1:] + (total_bytes - first)).tobytes())
        total_bytes += last - first
    return [counted, values]


def _header(rows: int, nulls: Sequence[int], places: Sequence[int], body_bytes: int) -> bytes:
    """The message's header. Offsets count from their own place; numbers of eight bytes are at places of eight."""
    nodes_bytes = 16 * len(nulls)
    head = _HEAD.pack(
        *(_MESSAGE,),
        *(12, 24, 4, 6, 16, 8),
        *(_MESSAGE - _MESSAGE_PLACES, _VERSION_5, ipc_framing.MessageKind.RECORD_BATCH),
        *(body_bytes, _BATCH - _MESSAGE - 16),
        *(10, 24, 8, 4, 16),
        *(_BATCH - _BATCH_PLACES, _NODES - _BATCH - 4, rows, _NODES + nodes_bytes + 8 - _BATCH - 16),
        len(nulls),
    )
    nodes = [number for count in nulls for number in (rows, count)]
    return b"".join(
        (
            head,
            struct.pack(f"<{len(nodes)}q", *nodes),
            struct.pack(f"<4xI{len(places)}q", len(places) // 2, *places),
        )
    )
