"""Joining: several small frames of one partition as one message, for readers to which each message costs much.

Guarantee: the message decodes to the frames' rows, in order, and carries nothing else. Where that is not certain
:meth:`FrameJoiner.join` gives nothing, and the frames go out one by one, as they were stored.

Which frames
    :meth:`FrameJoiner.of` says of a schema whether its frames can be joined, :meth:`FrameJoiner.parts_of` of a frame.
    Not joined are frames with app_metadata or metadata of their own, compressed ones, and those in the byte order that
    this machine has not. Frames with dictionaries are joined if they are flat, and if no dictionary is sent between
    them. Arrow takes up to 40 ns a row to join runs, of which a small frame may have any number, so they are not
    joined. A header of more than ``MAX_HEADER_BYTES``, as of 60 columns, takes longer to decode than a message to send.

How
    :class:`FlatColumns` joins frames of flat columns, and looks only where they say that their values are. Others Arrow
    decodes as one IPC stream, joins and encodes: about 0.4 ms for a megabyte, in four copies. Arrow's joining of a
    malformed batch can end the process, so frames that were not fully checked when they came are checked here.

Flat columns
    Of numbers, times, texts, bytes or dictionaries' indices: joined without Arrow, in one copy. The values of a column
    in several batches are one after the other what they are in one batch; only the offsets of texts count on from the
    frame before. So the message is joined from slices of the frames' bodies, and a header of its own: for a megabyte in
    about a third of the time that Arrow takes.

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

from .schemas import SchemaMessage, has_dictionaries, has_runs

MAX_HEADER_BYTES = 4 << 10
MAX_SCHEMA_BYTES = 16 << 10
"""A larger one takes milliseconds to decode."""
MAX_ELEMENTS = 16
"""For each byte of the frames. Elements need none where they are null or have no fields, until Arrow has to say of each
whether it is null: two frames of 200 bytes became 250 MB."""
_PREFIX_BYTES = 8
_COMPRESSION, _CUSTOM_METADATA = 3, 4  # fields of RecordBatch and of Message
_Part = bytes | memoryview

# The header up to its nodes: both tables, each behind the list of its fields' places.
_HEAD = struct.Struct("<I4x 6H4x iHBxqI4x 5H6x iIqI4x 4xI")
_MESSAGE_PLACES, _MESSAGE, _BATCH_PLACES, _BATCH, _NODES = 8, 24, 48, 64, 92
_VERSION_5 = 4


def _parts_of(message: bytes) -> wire.FlightData | None:
    parts = wire.locate(message)
    if parts.metadata or not parts.body or len(parts.header) > MAX_HEADER_BYTES:
        return None
    header = ipc_framing.IpcHeader(parts.header)
    batch = header.message.table(2)
    if batch is None or batch.slot(_COMPRESSION) or header.message.slot(_CUSTOM_METADATA):
        return None
    return parts


class FrameJoiner:
    """Joins frames of one schema. ``checked``: every frame was fully checked when it came."""

    def __init__(self, header: bytes, flat: FlatColumns | None, *, by_arrow: bool, checked: bool) -> None:
        self._header = ipc_framing.encapsulate(header)
        self._flat = flat
        self._by_arrow = by_arrow
        self._checked = checked
        # Of the last frame: the bytes before its body, its header among them, and its size. Many frames in turn have
        # the same ones, and differ in their bodies only.
        self._head, self._head_header, self._size_bytes = b"", memoryview(b""), 0

    @classmethod
    def of(cls, message: SchemaMessage, *, checked: bool) -> FrameJoiner | None:
        """None if frames of this schema cannot be joined."""
        if len(message.header) > MAX_SCHEMA_BYTES or not ipc_framing.is_little_endian(message.header):
            return None
        schema = message.schema
        flat, by_arrow = FlatColumns.of(schema), not (has_dictionaries(schema) or has_runs(schema))
        return cls(message.header, flat, by_arrow=by_arrow, checked=checked) if flat or by_arrow else None

    def parts_of(self, message: bytes) -> wire.FlightData | None:
        """The parts of a stored frame that can be joined with others; None if it cannot."""
        if len(message) == self._size_bytes and message.startswith(self._head):
            return wire.FlightData(header=self._head_header, body=memoryview(message)[len(self._head) :])
        parts = _parts_of(message)
        if parts is not None:
            before = wire.field(2, parts.header)
            head = before + wire.field_head(1000, len(parts.body))
            if len(head) + len(parts.body) == len(message) and message.startswith(head):
                self._head, self._size_bytes = head, len(message)
                self._head_header = memoryview(head)[len(before) - len(parts.header) : len(before)]
        return parts

    def join(self, frames: Sequence[wire.FlightData]) -> bytes | None:
        """The FlightData message of the frames' rows; None if they cannot be joined."""
        flat = None if self._flat is None else self._flat.join(frames)
        return self._joined_by_arrow(frames) if flat is None and self._by_arrow else flat

    def _joined_by_arrow(self, frames: Sequence[wire.FlightData]) -> bytes | None:
        if sum(_elements(parts.header) - MAX_ELEMENTS * len(parts.body) for parts in frames) > 0:
            return None
        pieces: list[bytes | memoryview] = [self._header]
        for parts in frames:
            pieces += (ipc_framing.encapsulate(parts.header), parts.body)
        # The C heap has pages that were used before, which Arrow's own allocator gives back at once.
        memory = pa.system_memory_pool()
        try:
            batches = list(pa.ipc.open_stream(pa.py_buffer(b"".join(pieces))))
            if not self._checked:
                for batch in batches:
                    batch.validate(full=True)
            joined = memoryview(pa.concat_batches(batches, memory_pool=memory).serialize(memory_pool=memory))
        except (pa.ArrowException, OSError):
            return None
        start = _PREFIX_BYTES + int.from_bytes(joined[4:_PREFIX_BYTES], "little")
        return wire.flight_data(joined[_PREFIX_BYTES:start], body=joined[start:])


def _elements(header: memoryview) -> int:
    """How many a batch has in all columns and their children. RecordBatch: 1 nodes (length, null_count)."""
    batch = ipc_framing.IpcHeader(header).message.table(2)
    at, count = (0, 0) if batch is None else batch.vector(1)
    return sum(length for (length,) in struct.iter_unpack("<q8x", header[at : at + 16 * count]))


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
    """The columns of one schema. :meth:`join` gives None where it is not certain, or where bits would have to be
    shifted: if a column has nulls or booleans, and eight does not divide the rows of a frame other than the last.
    """

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
        pieces: list[list[_Part]] = []
        for number, column in enumerate(self._columns):
            has_nulls = any(layout.nulls[number] for layout, _ in batches)
            if shifts and (has_nulls or column.bits == 1):
                return None
            pieces.append([_validity(batch, number) for batch in batches] if has_nulls else [])
            places = [layout.values[number] for layout, _ in batches]
            values: list[_Part] = [
                body[start:stop] for (start, stop), (_, body) in zip(places, batches, strict=True)
            ]
            pieces += (
                _texts(batches, number, values, column.offset_bytes) if column.offset_bytes else [values]
            )
        return pieces


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
