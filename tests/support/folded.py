"""IPC headers whose tables and texts are shared, as no writer makes them: small, and large for who reads them."""

from __future__ import annotations

import struct


class _Buffer:
    """A flatbuffer written from its root on: what is referred to lies behind."""

    def __init__(self, start: bytes = b"\0\0\0\0") -> None:
        self.data = bytearray(start)

    def pad(self, size: int) -> int:
        self.data.extend(b"\0" * (-len(self.data) % size))
        return len(self.data)

    def point(self, at: int, to: int) -> None:
        struct.pack_into("<I", self.data, at, to - at)

    def table(self, *sizes: int) -> tuple[int, list[int]]:
        """A table with fields of these sizes, 0 for absent ones: its place, and those of its fields."""
        vtable, at, offsets = self.pad(4), 4, []
        for size in sizes:
            at += -at % (size or 1)
            offsets.append(at if size else 0)
            at += size
        size_bytes = at + -at % 4
        self.data.extend(struct.pack(f"<HH{len(sizes)}H", 4 + 2 * len(sizes), size_bytes, *offsets))
        table = self.pad(8)
        self.data.extend(b"\0" * size_bytes)
        struct.pack_into("<i", self.data, table, table - vtable)
        return table, [table + offset for offset in offsets]

    def vector(self, at: int, count: int) -> list[int]:
        """A vector of offsets that the field at ``at`` refers to: the places of its entries."""
        self.point(at, self.pad(4))
        self.data.extend(struct.pack("<I", count))
        first = len(self.data)
        self.data.extend(b"\0" * (4 * count))
        return [first + 4 * number for number in range(count)]

    def text(self, text: bytes, *at: int) -> None:
        place = self.pad(4)
        self.data.extend(struct.pack("<I", len(text)) + text + b"\0")
        for each in at:
            self.point(each, place)


def folded_schema(width: int, depth: int, name: bytes, *, footer: bool = False) -> bytes:
    """A schema of ``width`` times the same field, which has as many children of the same kind, and so on: a message,
    or a file's footer.
    """
    buffer = _Buffer()
    if footer:
        root, (version, header) = buffer.table(2, 4)
    else:
        root, (version, kind, header, _) = buffer.table(2, 1, 4, 8)
        buffer.data[kind] = 1
    buffer.point(0, root)
    struct.pack_into("<h", buffer.data, version, 4)
    schema, (_, fields) = buffer.table(2, 4)
    buffer.point(header, schema)
    names = []
    for level in range(depth):
        entries = buffer.vector(fields, width)
        field, (name_at, nullable, type_kind, type_at, _, fields) = buffer.table(4, 1, 1, 4, 0, 4)
        for entry in entries:
            buffer.point(entry, field)
        buffer.data[nullable], buffer.data[type_kind] = 1, 13 if level + 1 < depth else 1  # Struct_, Null
        buffer.point(type_at, buffer.table()[0])
        names.append(name_at)
    buffer.vector(fields, 0)
    buffer.text(name, *names)
    buffer.pad(8)
    return bytes(buffer.data)


def with_folded_metadata(header: bytes, count: int, size_bytes: int) -> bytes:
    """The message, with ``count`` times the same pair of texts of that size as its custom metadata."""
    (old,) = struct.unpack_from("<I", header)
    (to_vtable,) = struct.unpack_from("<i", header, old)
    offsets = struct.unpack_from("<6H", header, old - to_vtable)[2:]
    buffer = _Buffer()
    message, (version, kind, batch, body, metadata) = buffer.table(2, 1, 4, 8, 4)
    buffer.point(0, message)
    for at, offset, size in ((version, offsets[0], 2), (kind, offsets[1], 1), (body, offsets[3], 8)):
        buffer.data[at : at + size] = header[old + offset : old + offset + size]
    copied = buffer.pad(8)
    buffer.data.extend(header)
    (to_batch,) = struct.unpack_from("<I", header, old + offsets[2])
    buffer.point(batch, copied + old + offsets[2] + to_batch)
    entries = buffer.vector(metadata, count)
    pair, places = buffer.table(4, 4)
    for entry in entries:
        buffer.point(entry, pair)
    buffer.text(b"x" * size_bytes, *places)
    buffer.pad(8)
    return bytes(buffer.data)
