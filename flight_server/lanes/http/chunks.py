"""Chunks: what the bulk lane puts on the wire of a run of messages.

Copies
    A frame is kept as the FlightData message that its producer sent. Its header is copied, to stand
    behind the IPC prefix; its body goes to the socket as a view of the bytes that are kept. What is
    smaller than ``SMALL_BODY_BYTES`` is copied together, because many small buffers cost the kernel more.

Chunks
    A run is a chunk, or, with checksums, as many as :data:`CHECKED_MESSAGES` ask for (``bulk`` has the format).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from flight_server.protocol import CHECKSUMS, wire

SMALL_BODY_BYTES = 16 << 10
CHECKED_MESSAGES = 256

Part = bytes | memoryview


class Message(NamedTuple):
    """An IPC message, located, and its checksum."""

    parts: wire.FlightData
    crc32c: int

    @property
    def size_bytes(self) -> int:
        """In an IPC stream."""
        return wire.encapsulated_bytes(self.parts.header) + len(self.parts.body)


def framed(messages: Iterable[Message], *, checked: bool) -> Iterator[bytes | Message]:
    """The messages, and what stands before and behind them."""
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


def chunks_of(messages: Iterable[Message], *, checked: bool) -> list[Part]:
    """The messages in one chunk; with ``checked`` in as many as it takes, with their checksums."""
    return joined(framed(messages, checked=checked))


def chunk(parts: list[Part]) -> list[Part]:
    """The parts as one chunk."""
    return [b"%x\r\n" % size_of(parts), *parts, b"\r\n"]


def joined(pieces: Iterable[bytes | Message]) -> list[Part]:
    """The pieces as an IPC stream has them: of messages prefix, header, body.

    The header is padded to 8 bytes; the body is as long as the header says, which is never changed.
    """
    parts: list[Part] = []
    small: list[Part] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            small.append(piece)
            continue
        body = piece.parts.body
        small.append(wire.encapsulate(piece.parts.header))
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
