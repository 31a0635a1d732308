"""Reads the headers of Arrow's IPC messages, and frames messages as an IPC stream does, without Arrow.

Functions that name a table of Arrow's flatbuffers, with its fields' numbers, raise BadFrame for other bytes.
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


def slot(buffer: memoryview, table: int, index: int) -> int:
    """Where field ``index`` of the flatbuffer table at ``table`` is; 0 if absent. Raises ValueError or struct.error."""
    (to_vtable,) = struct.unpack_from("<i", buffer, table)
    vtable = table - to_vtable
    if vtable < 0:
        raise ValueError("vtable outside")
    (vtable_bytes,) = struct.unpack_from("<H", buffer, vtable)
    if vtable_bytes < 6 + 2 * index:
        return 0
    (place,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * index)
    return table + int(place) if place else 0


def root(buffer: memoryview) -> int:
    """Where a flatbuffer's first table is."""
    return int(struct.unpack_from("<I", buffer, 0)[0])


def follow(buffer: memoryview, at: int) -> int:
    """Where the offset at ``at`` leads: a table or a vector."""
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def message_kind(header: memoryview) -> MessageKind:
    """The kind of message that an IPC header announces. ``Message``: 1 header_type."""
    try:
        at = slot(header, root(header), 1)
        return MessageKind(header[at]) if at else MessageKind.NONE
    except (struct.error, ValueError, IndexError):
        raise BadFrame(f"the header of {len(header)} bytes is not an Arrow IPC message") from None


def body_bytes(header: memoryview) -> int:
    """The size of a header's body, padding included. ``Message``: 3 bodyLength."""
    try:
        at = slot(header, root(header), 3)
        return int(struct.unpack_from("<q", header, at)[0]) if at else 0
    except (struct.error, ValueError, IndexError):
        raise BadFrame(f"the header of {len(header)} bytes is not an Arrow IPC message") from None


def dictionary_id(header: memoryview) -> tuple[int, bool]:
    """Id and "is a delta" of a dictionary message. ``DictionaryBatch``: 0 id, 1 data, 2 isDelta."""
    try:
        table = follow(header, slot(header, root(header), 2))
        id_slot, delta_slot = slot(header, table, 0), slot(header, table, 2)
        number = struct.unpack_from("<q", header, id_slot)[0] if id_slot else 0
        return number, bool(delta_slot and header[delta_slot])
    except (struct.error, ValueError, IndexError):
        raise BadFrame("the header is not an Arrow IPC dictionary message") from None


def is_little_endian(header: bytes) -> bool:
    """Whether a schema message that Arrow has accepted is little-endian. ``Schema``: 0 endianness."""
    view = memoryview(header)
    table = follow(view, slot(view, root(view), 2))
    at = slot(view, table, 0)
    return not at or struct.unpack_from("<h", view, at)[0] == 0


def decompressed_bytes(header: memoryview, body: memoryview) -> int:
    """The size of a batch's or dictionary's buffers after decompression; 0 if nothing is compressed."""

    def said(offset: int) -> int:
        return int(struct.unpack_from("<q", body, offset)[0])

    return decompressed_by(header, said)


def decompressed_by(header: memoryview, said: Callable[[int], int]) -> int:
    """As :func:`decompressed_bytes`; ``said`` reads the number of 8 bytes at this place of the body.

    ``RecordBatch``: 0 length, 1 nodes, 2 buffers (offset, length), 3 compression. A compressed buffer starts with its
    decompressed size, or with -1 if it was left as it is.
    """
    try:
        table = follow(header, slot(header, root(header), 2))
        if message_kind(header) is MessageKind.DICTIONARY:
            table = follow(header, slot(header, table, 1))
        if not slot(header, table, 3):
            return 0
        buffers = follow(header, slot(header, table, 2))
        (count,) = struct.unpack_from("<I", header, buffers)
        total_bytes = 0
        for offset, size_bytes in struct.iter_unpack("<qq", header[buffers + 4 : buffers + 4 + 16 * count]):
            if offset < 0 or size_bytes < 0:
                raise ValueError("a buffer before the body")
            if size_bytes:
                said_bytes = said(offset)
                total_bytes += said_bytes if said_bytes >= 0 else size_bytes
    except (struct.error, ValueError, IndexError):
        raise BadFrame("the header is not an Arrow IPC batch, or a buffer lies outside of its body") from None
    return total_bytes


def footer_blocks(footer: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where an IPC file's dictionaries and batches are: (position, bytes of the header with its prefix) of each.

    ``Footer``: 2 dictionaries, 3 recordBatches, both vectors of (offset, metaDataLength, bodyLength).
    """
    view = memoryview(footer)
    try:
        table = root(view)
        found = []
        for index in (2, 3):
            at = slot(view, table, index)
            vector = follow(view, at) if at else 0
            (count,) = struct.unpack_from("<I", view, vector) if at else (0,)
            places = struct.iter_unpack("<qi4xq", view[vector + 4 : vector + 4 + 24 * count])
            found.append([(position, size_bytes) for position, size_bytes, _ in places])
    except (struct.error, ValueError, IndexError):
        raise BadFrame(f"the footer of {len(footer)} bytes is not that of an Arrow IPC file") from None
    return found[0], found[1]


def schema_header(encapsulated: bytes) -> bytes:
    """The flatbuffer of an encapsulated IPC message without a body (``schema.serialize()``)."""
    return encapsulated[8:] if encapsulated[:4] == CONTINUATION else encapsulated[4:]


def encapsulated_bytes(header: bytes | memoryview) -> int:
    """The length of :func:`encapsulate`'s result."""
    return _PREFIX_BYTES + len(header) + -len(header) % 8


def encapsulate(header: bytes | memoryview) -> bytes:
    """The IPC stream prefix, the header and its padding; the body follows at an aligned place."""
    padding = -len(header) % 8
    return b"".join((CONTINUATION, struct.pack("<i", len(header) + padding), header, b"\0" * padding))
