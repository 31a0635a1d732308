"""The size of an IPC message's header as Arrow's objects, known before Arrow reads it.

Guarantee: in a header that :func:`measure` accepts, the fields, texts and metadata, each counted at every place that
refers to it, need at most ``SHARED_BYTES`` more than the header has.

Why
    A flatbuffer may refer to one table or text from many places, and Arrow makes an object or copy for each: a header
    of 140,000 bytes became 1 GB. Arrow's writers share nothing.

How
    The walk follows the tables as Arrow's reader does (Apache Arrow's ``Message.fbs`` and ``Schema.fbs``) and stops
    when the sum exceeds the limit, so the header's size bounds its time: about 4 µs a field. An offset that leads out
    of the header is an error.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from flight_server.protocol import BadFrame, MessageKind, follow, message_kind, root, slot

SHARED_BYTES = 64 << 10
_FIELD_BYTES = 24
"""The least that a field takes in a header."""
_PAIR_BYTES = 16
"""The same for a pair of metadata."""
_TIMESTAMP, _UNION = 10, 14

# What Arrow 26 takes beside the header in a stream's reader, measured with 100,000 fields of each type: plain ones
# 280 to 450 bytes, nested ones 360 to 630 a level, dictionaries 700, pairs 160, texts twice their length.
_FIELD_COST, _NESTED_COST, _DICTIONARY_COST, _UNION_COST, _PAIR_COST, _TEXT_COST = 448, 256, 320, 512, 192, 2


@dataclass
class HeaderSize:
    """The sizes of a header's contents.

    ``unfolded_bytes``: the least that they take without sharing. ``object_bytes``: the most that Arrow's objects take.
    """

    unfolded_bytes: int = 0
    object_bytes: int = 0


def measure(header: bytes | memoryview) -> HeaderSize:
    """The sizes of the header's contents. Raises BadFrame if they exceed the limit, or it is not a header."""
    walk = _Walk(memoryview(header))
    try:
        walk.message()
    except (struct.error, ValueError, IndexError):
        raise BadFrame(f"the header of {len(header)} bytes is not an Arrow IPC message") from None
    return walk.size


def check_footer(footer: bytes) -> None:
    """Raise as :func:`measure` for the footer of an IPC file."""
    try:
        _Walk(memoryview(footer)).footer()
    except (struct.error, ValueError, IndexError):
        raise BadFrame(f"the footer of {len(footer)} bytes is not that of an Arrow IPC file") from None


class _Walk:
    def __init__(self, header: memoryview) -> None:
        self.size = HeaderSize()
        self._header = header
        self._limit_bytes = len(header) + SHARED_BYTES

    def message(self) -> None:
        # Message: 0 version, 1 header_type, 2 header, 3 bodyLength, 4 custom_metadata
        header = self._header
        table = root(header)
        self._pairs(table, 4)
        at = slot(header, table, 2)
        if not at or message_kind(header) is not MessageKind.SCHEMA:
            return
        self._schema(follow(header, at))

    def footer(self) -> None:
        # Footer: 0 version, 1 schema, 2 dictionaries, 3 recordBatches, 4 custom_metadata
        table = root(self._header)
        self._pairs(table, 4)
        at = slot(self._header, table, 1)
        if at:
            self._schema(follow(self._header, at))

    def _schema(self, schema: int) -> None:
        # Schema: 0 endianness, 1 fields, 2 custom_metadata, 3 features
        self._pairs(schema, 2)
        fields = self._fields(schema, 1)
        while fields:
            fields += self._field(fields.pop())

    def _field(self, field: int) -> list[int]:
        """Its children. Field: 0 name, 1 nullable, 2 type_type, 3 type, 4 dictionary, 5 children, 6 custom_metadata."""
        header = self._header
        self._more(0, _DICTIONARY_COST if slot(header, field, 4) else 0)
        self._text(field, 0)
        at, kind_at = slot(header, field, 3), slot(header, field, 2)
        kind = header[kind_at] if kind_at else 0
        if at and kind == _TIMESTAMP:  # 0 unit, 1 timezone
            self._text(follow(header, at), 1)
        elif at and kind == _UNION:  # 0 mode, 1 typeIds
            self._more(4 * self._length(follow(header, at), 1), _UNION_COST)
        self._pairs(field, 6)
        children = self._fields(field, 5)
        self._more(0, _NESTED_COST if children else 0)
        return children

    def _fields(self, table: int, index: int) -> list[int]:
        count = self._length(table, index)
        self._more(count * _FIELD_BYTES, count * _FIELD_COST)
        return self._tables(table, index)

    def _pairs(self, table: int, index: int) -> None:
        count = self._length(table, index)
        self._more(count * _PAIR_BYTES, count * _PAIR_COST)
        for pair in self._tables(table, index):
            self._text(pair, 0)
            self._text(pair, 1)

    def _text(self, table: int, index: int) -> None:
        length = self._length(table, index)
        self._more(length, length * _TEXT_COST)

    def _length(self, table: int, index: int) -> int:
        """Of the text or vector in this field; 0 if there is none."""
        at = slot(self._header, table, index)
        return int(struct.unpack_from("<I", self._header, follow(self._header, at))[0]) if at else 0

    def _tables(self, table: int, index: int) -> list[int]:
        """The positions of this vector's tables, which the caller has counted."""
        at = slot(self._header, table, index)
        if not at:
            return []
        vector = follow(self._header, at)
        count = self._length(table, index)
        first = vector + 4
        offsets = struct.unpack_from(f"<{count}I", self._header, first)
        return [first + 4 * number + offset for number, offset in enumerate(offsets)]

    def _more(self, unfolded_bytes: int, object_bytes: int) -> None:
        size = self.size
        size.unfolded_bytes += unfolded_bytes
        size.object_bytes += object_bytes
        if size.unfolded_bytes > self._limit_bytes:
            raise BadFrame(
                f"the header of {len(self._header)} bytes refers to its parts from so many places that it would "
                "become many times as large: write each field, text and metadata of its own"
            )
