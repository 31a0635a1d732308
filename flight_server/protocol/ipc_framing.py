"""Reads the headers of Arrow's IPC messages, and frames messages as an IPC stream does, without Arrow.

Functions and properties that name a table of Arrow's flatbuffers, with its fields' numbers, raise BadFrame for other
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from .errors import BadFrame

CONTINUATION: Final = b"\xff\xff\xff\xff"
_PREFIX_BYTES: Final = 8
END_OF_STREAM: Final = CONTINUATION + b"\0\0\0\0"


class MessageKind(IntEnum):
    """``MessageHeader`` of Arrow's ``Message.fbs``."""

    NONE = 0
    SCHEMA = 1
    DICTIONARY = 2
    RECORD_BATCH = 3


_KINDS: Final = tuple(MessageKind)
_MESSAGE: Final = struct.Struct("<5H")
"""Where a ``Message`` has its fields, counted from its place; 0 if it has not."""
_SHORT, _INT, _OFFSET, _LONG = (struct.Struct(each).unpack_from for each in ("<H", "<i", "<I", "<q"))


class Table:
    """A table of a flatbuffer. Its methods raise ValueError or struct.error if a part lies outside of the buffer."""

    __slots__ = ("_buffer", "_layout", "_layout_bytes", "_place")

    def __init__(self, buffer: memoryview, place: int) -> None:
        self._buffer = buffer
        self._place = place
        self._layout = place - _INT(buffer, place)[0]
        if self._layout < 0:
            raise ValueError("vtable outside")
        self._layout_bytes: int = _SHORT(buffer, self._layout)[0]

    @classmethod
    def root(cls, buffer: memoryview) -> Table:
        return cls(buffer, _OFFSET(buffer, 0)[0])

    def slot(self, index: int) -> int:
        """Where this field is; 0 if absent."""
        if self._layout_bytes < 6 + 2 * index:
            return 0
        place: int = _SHORT(self._buffer, self._layout + 4 + 2 * index)[0]
        return self._place + place if place else 0

    def long(self, index: int) -> int:
        """The value of a field of 8 bytes; 0 if absent."""
        at = self.slot(index)
        return int(_LONG(self._buffer, at)[0]) if at else 0

    def table(self, index: int) -> Table | None:
        """The table in this field."""
        at = self.slot(index)
        return Table(self._buffer, at + _OFFSET(self._buffer, at)[0]) if at else None

    def vector(self, index: int) -> tuple[int, int]:
        """Where the elements of the vector or text in this field begin, and their number; 0 and 0 if it is absent."""
        at = self.slot(index)
        if not at:
            return 0, 0
        start = at + _OFFSET(self._buffer, at)[0]
        return start + 4, _OFFSET(self._buffer, start)[0]


class IpcHeader:
    """The header of one IPC message: made once for a message, and passed on with it.

    ``Message``: 0 version, 1 header_type, 2 header, 3 bodyLength, 4 custom_metadata.
    """

    __slots__ = ("_header_at", "_place", "body_bytes", "data", "has_metadata", "kind")

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = view = memoryview(data)
        try:
            # All fields in one step: each batch's header is read on both sides of a put.
            self._place = place = _OFFSET(view, 0)[0]
            layout = place - _INT(view, place)[0]
            if layout < 0:
                raise ValueError("vtable outside")
            layout_bytes = _SHORT(view, layout)[0] & ~1
            if layout + layout_bytes > len(view):
                raise ValueError("vtable outside")
            slots = bytes(view[layout + 4 : layout + layout_bytes])[: _MESSAGE.size]
            _, kind, header, body, metadata = _MESSAGE.unpack(slots.ljust(_MESSAGE.size, b"\0"))
            self.kind = _KINDS[view[place + kind]] if kind else MessageKind.NONE
            self.body_bytes: int = _LONG(view, place + body)[0] if body else 0
            """The size of its body, padding included."""
            self.has_metadata = metadata > 0
            self._header_at = place + header if header else 0
        except (struct.error, ValueError, IndexError):
            raise BadFrame(f"the header of {len(self.data)} bytes is not an Arrow IPC message") from None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def message(self) -> Table:
        return Table(self.data, self._place)

    @property
    def dictionary_id(self) -> tuple[int, bool]:
        """Id and "is a delta" of a dictionary message. ``DictionaryBatch``: 0 id, 1 data, 2 isDelta."""
        try:
            batch = self.message.table(2)
            if batch is None:
                return 0, False
            delta = batch.slot(2)
            return batch.long(0), bool(delta and self.data[delta])
        except (struct.error, ValueError, IndexError):
            raise BadFrame("the header is not an Arrow IPC dictionary message") from None

    def decompressed_bytes(self, read_number: Callable[[int], int]) -> int:
        """The size of a batch's or dictionary's buffers after decompression; 0 if nothing is compressed.

        ``RecordBatch``: 0 length, 1 nodes, 2 buffers (offset, length), 3 compression. A compressed buffer starts with
        its decompressed size, or with -1 if it was left as it is.

        Args:
            read_number: reads the number of 8 bytes at this place of the body, as :func:`number_at`.
        """
        try:
            if not self._header_at:
                return 0
            place = self._header_at + _OFFSET(self.data, self._header_at)[0]
            if self.kind is MessageKind.RECORD_BATCH:
                # As ``Table`` and its ``slot``, in one step: almost no batch is compressed.
                layout = place - _INT(self.data, place)[0]
                layout_bytes = _SHORT(self.data, layout)[0] if layout >= 0 else 0
                if 0 < layout_bytes < 12 or (layout_bytes and not _SHORT(self.data, layout + 10)[0]):
                    return 0
            batch: Table | None = Table(self.data, place)
            if batch is not None and self.kind is MessageKind.DICTIONARY:
                batch = batch.table(1)
            if batch is None or not batch.slot(3):
                return 0
            start, count = batch.vector(2)
            total_bytes = 0
            for offset, size_bytes in struct.iter_unpack("<qq", self.data[start : start + 16 * count]):
                if offset < 0 or size_bytes < 0:
                    raise ValueError("a buffer before the body")
                if size_bytes:
                    said_bytes = read_number(offset)
                    total_bytes += said_bytes if said_bytes >= 0 else size_bytes
        except (struct.error, ValueError):
            raise BadFrame(
                "the header is not an Arrow IPC batch, or a buffer lies outside of its body"
            ) from None
        return total_bytes


def number_at(body: memoryview, offset: int) -> int:
    """The number of 8 bytes at this place of the body. Raises struct.error if it lies outside."""
    return int(_LONG(body, offset)[0])


def is_little_endian(header: bytes) -> bool:
    """Whether a schema message that Arrow has accepted is little-endian. ``Schema``: 0 endianness."""
    schema = IpcHeader(header).message.table(2)
    at = 0 if schema is None else schema.slot(0)
    return not at or _SHORT(header, at)[0] == 0


def footer_blocks(footer: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where an IPC file's dictionaries and batches are: (position, bytes of the header with its prefix) of each.

    ``Footer``: 2 dictionaries, 3 recordBatches, both vectors of (offset, metaDataLength, bodyLength).
    """
    view = memoryview(footer)
    try:
        table = Table.root(view)
        blocks = []
        for index in (2, 3):
            start, count = table.vector(index)
            places = struct.iter_unpack("<qi4xq", view[start : start + 24 * count])
            blocks.append([(position, size_bytes) for position, size_bytes, _ in places])
    except (struct.error, ValueError, IndexError):
        raise BadFrame(f"the footer of {len(footer)} bytes is not that of an Arrow IPC file") from None
    return blocks[0], blocks[1]


def schema_metadata(header: bytes) -> list[tuple[bytes, bytes]]:
    """The keys and values of the metadata of a schema message that Arrow has accepted, in their order: pyarrow shows
    one for each key. ``Schema``: 2 custom_metadata; ``KeyValue``: 0 key, 1 value.
    """
    view = memoryview(header)
    schema = IpcHeader(header).message.table(2)
    start, count = (0, 0) if schema is None else schema.vector(2)
    pairs = [Table(view, at + _OFFSET(view, at)[0]) for at in range(start, start + 4 * count, 4)]
    texts = [[bytes(view[at : at + size]) for at, size in map(pair.vector, (0, 1))] for pair in pairs]
    return [(key, value) for key, value in texts]


def schema_header(encapsulated: bytes) -> bytes:
    """The flatbuffer of an encapsulated IPC message without a body (``schema.serialize()``)."""
    return encapsulated[8:] if encapsulated[:4] == CONTINUATION else encapsulated[4:]


def split(encapsulated: bytes | memoryview) -> tuple[memoryview, memoryview]:
    """The header, padded, of the first of encapsulated messages, and what follows it: its body, and the next ones."""
    view = memoryview(encapsulated)
    end = _PREFIX_BYTES + _INT(view, 4)[0]
    return view[_PREFIX_BYTES:end], view[end:]


def encapsulated_bytes(header: bytes | memoryview) -> int:
    """The length of :func:`encapsulate`'s result."""
    return _PREFIX_BYTES + len(header) + -len(header) % 8


def encapsulate(header: bytes | memoryview) -> bytes:
    """The IPC stream prefix, the header and its padding; the body follows at an aligned place."""
    padding = -len(header) % 8
    return b"".join((CONTINUATION, struct.pack("<i", len(header) + padding), header, b"\0" * padding))
