"""Chunks: the bytes of a burst of messages on the bulk lane (``bulk_get`` has the format).

A stored message's header is copied, to follow the IPC prefix, and its body is sent as a view. Bodies below
``SMALL_BODY_BYTES`` are copied, too, because many small buffers cost the kernel more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from flight_server.protocol import CHECKSUMS, ipc_framing, wire

SMALL_BODY_BYTES = 16 << 10
CHECKED_MESSAGES = 256

Part = bytes | memoryview


class FramedMessage(NamedTuple):
    """The parts of an IPC message, and its checksum."""

    parts: wire.FlightData
    crc32c: int

    @property
    def size_bytes(self) -> int:
        return ipc_framing.encapsulated_bytes(self.parts.header) + len(self.parts.body)


def framed(messages: Iterable[FramedMessage], *, checked: bool) -> Iterator[bytes | FramedMessage]:
    """The messages and the bytes around each chunk: one chunk, or if ``checked`` chunks of ``CHECKED_MESSAGES``, with
    checksums.
    """
    messages = iter(messages)
    while some := list(islice(messages, CHECKED_MESSAGES) if checked else messages):
        sizes = [message.size_bytes for message in some]
        extension = ""
        if checked:
            sums = [f"{size:x}-{message.crc32c:08x}" for size, message in zip(sizes, some, strict=True)]
            extension = f";{CHECKSUMS}={'.'.join(sums)}"
        yield f"{sum(sizes):x}{extension}\r\n".encode("ascii")
        yield from some
        yield b"\r\n"


def chunks_of(messages: Iterable[FramedMessage], *, checked: bool) -> list[Part]:
    """The messages in the chunks of :func:`framed`."""
    return joined(framed(messages, checked=checked))


def chunk(parts: list[Part]) -> list[Part]:
    """The parts as one chunk."""
    return [b"%x\r\n" % size_of(parts), *parts, b"\r\n"]


def joined(pieces: Iterable[bytes | FramedMessage]) -> list[Part]:
    """The pieces in IPC form: of a message its prefix, its header padded to 8 bytes, and its body.

    The header is never changed, and the body as long as it says.
    """
    parts: list[Part] = []
    small: list[Part] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            small.append(piece)
            continue
        body = piece.parts.body
        small.append(ipc_framing.encapsulate(piece.parts.header))
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
