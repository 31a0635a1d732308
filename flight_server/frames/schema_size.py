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

from flight_server.protocol import BadFrame, IpcHeader, MessageKind, Table

SHARED_BYTES = 64 << 10
_FIELD_BYTES = 24
"""The least that a field takes in a header."""
_PAIR_BYTES = 16
"""The same for a pair of metadata."""
_TIMESTAMP, _UNION = 10, 14

# The bytes of Arrow 26 beside the header in a stream's reader, measured with 100,000 fields of each type: plain ones
# 280 to 450 bytes, nested ones 360 to 630 a level, dictionaries 700, pairs 160, texts twice their length.
_FIELD_COST, _NESTED_COST, _DICTIONARY_COST, _UNION_COST, _PAIR_COST, _TEXT_COST = 448, 256, 320, 512, 192, 2


@dataclass
class HeaderSize:
    """The sizes of a header's contents.

    ``unfolded_bytes``: the least that they take without sharing. ``object_bytes``: the most that Arrow's objects take.
    """

    unfolded_bytes: int = 0
    object_bytes: int = 0


def measure(header: IpcHeader | bytes) -> HeaderSize:
    """The sizes of the header's contents. Raises BadFrame if they exceed the limit, or it is not a header."""
    if not isinstance(header, IpcHeader):
        header = IpcHeader(header)
    if header.kind is not MessageKind.SCHEMA and not header.has_metadata:
        return HeaderSize()
    try:
        walk, message = _Walk(header.data), header.message
        if header.has_metadata:
            walk.pairs(message, 4)
        if header.kind is MessageKind.SCHEMA:
            walk.schema(message.table(2))
    except BadFrame:
        raise
    except (struct.error, ValueError, IndexError):
        raise BadFrame(f"the header of {len(header)} bytes is not an Arrow IPC message") from None
    return walk.size


def check_footer(footer: bytes) -> None:
    """Raise as :func:`measure` for the footer of an IPC file."""
    walk = _Walk(memoryview(footer))
    # Footer: 0 version, 1 schema, 2 dictionaries, 3 recordBatches, 4 custom_metadata
    try:
        table = Table.root(memoryview(footer))
        walk.pairs(table, 4)
        walk.schema(table.table(1))
    except BadFrame:
        raise
    except (struct.error, ValueError, IndexError):
        raise BadFrame(f"the footer of {len(footer)} bytes is not that of an Arrow IPC file") from None


class _Walk:
    def __init__(self, header: memoryview) -> None:
        self.size = HeaderSize()
        self._header = header
        self._limit_bytes = len(header) + SHARED_BYTES

    def schema(self, schema: Table | None) -> None:
        if schema is None:
            return
        # Schema: 0 endianness, 1 fields, 2 custom_metadata, 3 features
        self.pairs(schema, 2)
        fields = self._fields(schema, 1)
        while fields:
            fields += self._field(Table(self._header, fields.pop()))

    def pairs(self, table: Table, index: int) -> None:
        _, count = table.vector(index)
        self._more(count * _PAIR_BYTES, count * _PAIR_COST)
        for place in self._places(table, index):
            pair = Table(self._header, place)
            self._text(pair, 0)
            self._text(pair, 1)

    def _field(self, field: Table) -> list[int]:
        """Its children. Field: 0 name, 1 nullable, 2 type_type, 3 type, 4 dictionary, 5 children, 6 custom_metadata."""
        self._more(0, _DICTIONARY_COST if field.slot(4) else 0)
        self._text(field, 0)
        kind_at = field.slot(2)
        kind = self._header[kind_at] if kind_at else 0
        typed = field.table(3) if kind in (_TIMESTAMP, _UNION) else None
        if typed and kind == _TIMESTAMP:  # 0 unit, 1 timezone
            self._text(typed, 1)
        elif typed:  # 0 mode, 1 typeIds
            self._more(4 * typed.vector(1)[1], _UNION_COST)
        self.pairs(field, 6)
        children = self._fields(field, 5)
        self._more(0, _NESTED_COST if children else 0)
        return children

    def _fields(self, table: Table, index: int) -> list[int]:
        _, count = table.vector(index)
        self._more(count * _FIELD_BYTES, count * _FIELD_COST)
        return self._places(table, index)

    def _text(self, table: Table, index: int) -> None:
        _, length = table.vector(index)
        self._more(length, length * _TEXT_COST)

    def _places(self, table: Table, index: int) -> list[int]:
        """The places of this vector's tables, which the caller has counted."""
        first, count = table.vector(index)
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
