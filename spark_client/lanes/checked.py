"""The messages of an HTTP body, each read whole and checked before Arrow's decoder gets any of it.

Guarantee: if the server has sent a message's size and checksum (``flight_server.lanes.http.bulk_get``), its bytes
reach the decoder only if both agree. If the first message has a checksum, a later one without is damaged. A damaged
length takes no memory and waits for no bytes: it is first compared with the server's size.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Protocol

import pyarrow as pa

from flight_server.protocol import BadFrame, ipc_framing
from flight_server.protocol.checksums import message_crc32c

PREFIX_BYTES = 8
_PREFIX = struct.Struct("<4si")


class DamagedArrival(ConnectionResetError):
    """A message differs from the one that the server has sent."""

    def __init__(self, how: str) -> None:
        super().__init__(f"a message was damaged on its way from the server: {how}")


class MessageBytes(Protocol):
    """What of an ``http.Body`` is used here."""

    announced: deque[tuple[int, int]]

    def next_chunk_bytes(self) -> int: ...

    def read_buffer(self, size: int) -> pa.Buffer: ...


class CheckedMessages:
    """The file that Arrow's decoder reads instead of the body."""

    closed = False

    def __init__(self, body: MessageBytes) -> None:
        self._body = body
        self._pieces: deque[pa.Buffer] = deque()
        self._promised: bool | None = None  # not known before the first message, which is the schema
        self._checksums: list[int] = []

    @property
    def promised(self) -> bool:
        """Whether the server sends checksums; False before the first message."""
        return bool(self._promised)

    def taken(self) -> list[int]:
        """The checksums of the record batches read since the last call."""
        checksums, self._checksums = self._checksums, []
        return checksums

    def read_buffer(self, size: int) -> pa.Buffer:
        """The next bytes for Arrow's decoder, fewer only at the end of a part or of the body."""
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
        """For Arrow's decoder; the body stays open."""

    def _read_message(self) -> None:
        """Read the next message into ``_pieces``; an empty piece at the end of the body.

        Raises:
            Damaged: see the module; or it is no Arrow message.
            ConnectionError: the body was cut.
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
        if said is None and mark + prefix[4:].to_pybytes() == ipc_framing.END_OF_STREAM:
            self._pieces.append(prefix)
            return
        if self._promised is None:
            self._promised = said is not None
        if said is None and self._promised:
            raise DamagedArrival("it has no checksum")
        left_bytes = None if said is None else said[0] - PREFIX_BYTES
        if mark != ipc_framing.CONTINUATION or header_bytes <= 0 or _is_less(left_bytes, header_bytes):
            raise DamagedArrival(f"its header cannot have {header_bytes} bytes")
        header = self._part(header_bytes)
        try:
            read = ipc_framing.IpcHeader(memoryview(header))
            body_bytes, kind = read.body_bytes, read.kind
        except BadFrame as bad:
            raise DamagedArrival(bad.message) from None
        if body_bytes < 0 or (left_bytes is not None and header_bytes + body_bytes != left_bytes):
            raise DamagedArrival(f"its body cannot have {body_bytes} bytes")
        content = self._part(body_bytes)
        checksum = message_crc32c(memoryview(header), memoryview(content))
        check(said, checksum)
        if kind is ipc_framing.MessageKind.RECORD_BATCH:
            self._checksums.append(checksum)
        self._pieces += [piece for piece in (prefix, header, content) if piece.size]

    def _part(self, size_bytes: int) -> pa.Buffer:
        part = self._body.read_buffer(size_bytes)
        if part.size < size_bytes:
            raise ConnectionResetError("the body ended inside a message")
        return part


def check(said: tuple[int, int] | None, checksum: int) -> None:
    """Raise :class:`DamagedArrival` if a message's checksum differs from the server's."""
    if said is not None and said[1] != checksum:
        raise DamagedArrival(f"its checksum is {checksum:08x}, and was {said[1]:08x} when it was sent")


def _is_less(limit: int | None, value: int) -> bool:
    return limit is not None and limit < value
