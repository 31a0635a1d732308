"""How large the batches of an IPC file are in RAM, known before Arrow reads them.

Guarantee: the size of a compressed batch is the sum of the sizes before its compressed buffers, which Arrow allocates:
a file of 38 KiB can hold a batch of a gigabyte. Of another batch it is that of its body. A file's dictionaries are read
with its first batch; those of a stream with the batch behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from flight_server.protocol import BadFrame, ipc_framing

_AT_ONCE_BYTES = 4 << 20
"""A body of this size is read in one piece: an object store takes as long for 8 bytes."""

Hold = Callable[[int], None]
"""Called with the bytes of the next batch before it is read; raises if there is no room for it."""


def of_file(stream: Any, footer: bytes) -> Iterator[int]:
    """The size of each batch of an IPC file."""
    dictionaries, batches = ipc_framing.footer_blocks(footer)
    kept_bytes = sum(_size(stream, *place) for place in dictionaries)
    for place in batches:
        yield kept_bytes + _size(stream, *place)


def of_stream(stream: Any, first: int) -> Iterator[int]:
    """The size of each batch of an IPC stream whose schema message begins at ``first``.

    Arrow's stream reader goes on where the file stands, so its position is as it was at each batch.
    """
    at, kept_bytes, stands = first, 0, stream.tell()
    while True:
        prefix = stream.read_at(8, at)
        prefix_bytes = 8 if prefix.startswith(ipc_framing.CONTINUATION) else 4
        header_bytes = int.from_bytes(prefix[prefix_bytes - 4 : prefix_bytes], "little")
        if not header_bytes:
            return
        header = ipc_framing.IpcHeader(stream.read_at(header_bytes, at + prefix_bytes))
        kind = header.kind
        if kind is ipc_framing.MessageKind.DICTIONARY:
            kept_bytes += _size(stream, at, prefix_bytes + header_bytes)
        elif kind is ipc_framing.MessageKind.RECORD_BATCH:
            size_bytes = kept_bytes + _size(stream, at, prefix_bytes + header_bytes)
            stream.seek(stands)
            yield size_bytes
            stands = stream.tell()
        at += prefix_bytes + header_bytes + header.body_bytes


def held(batches: Iterator[pa.RecordBatch], sizes: Iterator[int], hold: Hold) -> Iterator[pa.RecordBatch]:
    """The batches, each after ``hold`` was called with its size."""
    try:
        for size_bytes in sizes:
            hold(size_bytes)
            yield next(batches)
    except BadFrame as bad:
        raise pa.ArrowInvalid(bad.message) from None
    except StopIteration:
        raise pa.ArrowInvalid("it ends before its last batch") from None


def _size(stream: Any, position: int, encapsulated_bytes: int) -> int:
    """Of the message at this position, whose header with its prefix has so many bytes."""
    header = ipc_framing.IpcHeader(ipc_framing.schema_header(stream.read_at(encapsulated_bytes, position)))
    body, body_bytes = position + encapsulated_bytes, header.body_bytes
    whole = stream.read_at(body_bytes, body) if 0 < body_bytes <= _AT_ONCE_BYTES else None

    def said(offset: int) -> int:
        piece = stream.read_at(8, body + offset) if whole is None else whole[offset : offset + 8]
        if len(piece) < 8:
            raise ValueError("a buffer outside of the body")
        return int.from_bytes(piece, "little", signed=True)

    return max(body_bytes, header.decompressed_bytes(said))
