"""Chunks: the bytes of a burst of messages on the bulk lane (``bulk_get`` has the format).

A stored message's header is copied, to follow the IPC prefix, and its body is sent as a view. Bodies below
``SMALL_BODY_BYTES`` are copied, too, because many small buffers cost the kernel more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from flight_server.protocol import CHECKSUMS, ipc_framing, wire

SMALL_BODY_BYTES = 16 << 10
CHECKED_MESSAGES = 256

Part = bytes | memoryview
_PADDING = bytes(7)
_PREFIX, _PREFIX_BYTES = struct.Struct("<4si").pack, 8


class FramedMessage(NamedTuple):
    """The parts of an IPC message, and its checksum."""

    parts: wire.FlightData
    crc32c: int

    @property
    def size_bytes(self) -> int:
        return ipc_framing.encapsulated_bytes(self.parts.header) + len(self.parts.body)


def framed(messages: Sequence[FramedMessage], *, checked: bool) -> Iterator[bytes | FramedMessage]:
    """The messages and the bytes around the one chunk, or if ``checked`` around chunks of ``CHECKED_MESSAGES``."""
    at_once = CHECKED_MESSAGES if checked else max(1, len(messages))
    for begin in range(0, len(messages), at_once):
        some = messages[begin : begin + at_once]
        total_bytes, sums = 0, list[str]()
        for parts, crc32c in some:
            header_bytes = len(parts.header)
            size_bytes = _PREFIX_BYTES + header_bytes + -header_bytes % 8 + len(parts.body)
            total_bytes += size_bytes
            if checked:
                sums.append(f"{size_bytes:x}-{crc32c:08x}")
        extension = f";{CHECKSUMS}={'.'.join(sums)}" if checked else ""
        yield f"{total_bytes:x}{extension}\r\n".encode("ascii")
        yield from some
        yield b"\r\n"


def chunks_of(messages: Sequence[FramedMessage], *, checked: bool) -> list[Part]:
    """The messages in the chunks of :func:`framed`."""
    return joined(framed(messages, checked=checked))


def chunk(parts: list[Part]) -> list[Part]:
    """The parts as one chunk."""
    return [b"%x\r\n" % size_of(parts), *parts, b"\r\n"]


def joined(pieces: Iterable[bytes | FramedMessage]) -> list[Part]:
    """The pieces, the messages in IPC form: of each its prefix, its header padded to 8 bytes, and its body.

    The header is never changed, and the body as long as it says.
    """
    parts: list[Part] = []
    small: list[Part] = []  # what is to be copied together before the next part
    for piece in pieces:
        if isinstance(piece, bytes):
            small.append(piece)
            continue
        (_, header, _, body), _ = piece
        padding = -len(header) % 8
        small += (_PREFIX(ipc_framing.CONTINUATION, len(header) + padding), header, _PADDING[:padding])
        if len(body) < SMALL_BODY_BYTES:
            small.append(body)
        else:
            parts += (b"".join(small), body)
            small.clear()
    if small:
        parts.append(b"".join(small))
    return parts


def size_of(parts: Iterable[Part]) -> int:
    """The bytes of all parts."""
    return sum(map(len, parts))
