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
    ``flat_joining`` joins frames of flat columns, and looks only where they say that their values are. Others Arrow
    decodes as one IPC stream, joins and encodes: about 0.4 ms for a megabyte, in four copies. Arrow's joining of a
    malformed batch can end the process, so frames that were not fully checked when they came are checked here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from flight_server.protocol import ipc_framing, wire

from .flat_joining import FlatColumns
from .schema_message import SchemaMessage, has_dictionaries, has_runs

MAX_HEADER_BYTES = 4 << 10
MAX_SCHEMA_BYTES = 16 << 10
"""A larger one takes milliseconds to decode."""
MAX_ELEMENTS = 16
"""For each byte of the frames. Elements need none where they are null or have no fields, until Arrow has to say of each
whether it is null: two frames of 200 bytes became 250 MB."""
_PREFIX_BYTES = 8
_COMPRESSION, _CUSTOM_METADATA = 3, 4  # fields of RecordBatch and of Message


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
