"""The messages of an HTTP body, each read whole and checked before Arrow's decoder gets any of it.

Guarantee: where the server has said a message's size and checksum (see the server's ``bulk_get``), its bytes reach
the decoder only if they have both. Once the server has said them, a message without them is damage, too. A
length that was damaged on its way neither takes memory nor waits for bytes that never come: it is compared with
the size that was said.

Where the server says none, messages pass as they come; they are summed up for the totals at the end.
"""

from __future__ import annotations

import struct
from collections import deque

import pyarrow as pa

from flight_server.protocol import BadFrame, wire
from flight_server.protocol.checksums import message_crc32c

from .http import Body

PREFIX_BYTES = 8
_PREFIX = struct.Struct("<4si")


class Damaged(ConnectionResetError):
    """A message is not what the server has sent."""

    def __init__(self, how: str) -> None:
        super().__init__(f"a message was damaged on its way from the server: {how}")


class CheckedMessages:
    """The file that Arrow's decoder reads instead of the body."""

    closed = False

    def __init__(self, body: Body) -> None:
        self._body = body
        self._pieces: deque[pa.Buffer] = deque()
        self._promised: bool | None = None  # not known before the first message, which is the schema
        self._checksums: list[int] = []

    @property
    def promised(self) -> bool:
        """Whether the server says checksums."""
        return bool(self._promised)

    def taken(self) -> list[int]:
        """The checksums of the record batches that have been read since this was asked last."""
        checksums, self._checksums = self._checksums, []
        return checksums

    def read_buffer(self, size: int) -> pa.Buffer:
        """What Arrow's decoder calls: the next bytes, fewer only at the end of a part or of the body."""
        if not self._pieces:
            self._read_message()
        piece = self._pieces.popleft()
        if size < piece.size:
            self._pieces.appendleft(piece.slice(size))
            piece = piece.slice(0, size)
        return piece

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(size).to_pybytes())

    def close(self) -> None:
        """The connection is not the decoder's to close."""

    def _read_message(self) -> None:
        """Read the next message into ``_pieces``; an empty piece at the end of the body.

        Raises:
            Damaged: it is not what the server has sent.
            ConnectionError: the body was cut, or is no Arrow stream.
        """
        body = self._body
        body.next_chunk_bytes()
        said = body.announced.popleft() if body.announced else None
        prefix = body.read_buffer(PREFIX_BYTES)
        if prefix.size < PREFIX_BYTES:
            if prefix.size:
                raise ConnectionResetError("the body ended inside a message")
            self._pieces.append(prefix)
            return
        mark, header_bytes = _PREFIX.unpack(prefix)
        if said is None and mark + prefix[4:].to_pybytes() == wire.END_OF_STREAM:
            self._pieces.append(prefix)
            return
        if self._promised is None:
            self._promised = said is not None
        if said is None and self._promised:
            raise Damaged("it has no checksum")
        left_bytes = None if said is None else said[0] - PREFIX_BYTES
        if mark != wire.CONTINUATION or header_bytes <= 0 or _is_less(left_bytes, header_bytes):
            raise Damaged(f"its header cannot have {header_bytes} bytes")
        header = self._part(header_bytes)
        try:
            body_bytes = wire.body_bytes(memoryview(header))
            kind = wire.message_kind(memoryview(header))
        except BadFrame as bad:
            raise Damaged(bad.message) from None
        if body_bytes < 0 or (left_bytes is not None and header_bytes + body_bytes != left_bytes):
            raise Damaged(f"its body cannot have {body_bytes} bytes")
        content = self._part(body_bytes)
        checksum = message_crc32c(memoryview(header), memoryview(content))
        check(said, checksum)
        if kind is wire.MessageKind.RECORD_BATCH:
            self._checksums.append(checksum)
        self._pieces += [piece for piece in (prefix, header, content) if piece.size]

    def _part(self, size_bytes: int) -> pa.Buffer:
        part = self._body.read_buffer(size_bytes)
        if part.size < size_bytes:
            raise ConnectionResetError("the body ended inside a message")
        return part


def check(said: tuple[int, int] | None, checksum: int) -> None:
    """Compare a message's checksum with what the server has said of it.

    Raises:
        Damaged: they differ.
    """
    if said is not None and said[1] != checksum:
        raise Damaged(f"its checksum is {checksum:08x}, and was {said[1]:08x} when it was sent")


def _is_less(limit: int | None, value: int) -> bool:
    return limit is not None and limit < value
