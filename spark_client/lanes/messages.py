"""Encodes record batches as the messages of a put on the bulk lane, large buffers without a copy.

Guarantee: the messages are those of pyarrow's DoPut for the same batches and options, byte for byte, dictionaries and
their replacements included; only the schema's header may be padded to eight bytes. So the stored frames do not depend
on the lane. The exception are buffers that a :class:`~.compression.BufferCompressor` has made smaller.
``protocol.put_framing`` has the bytes before each message.

How
    One IPC stream writer for all batches decides which dictionaries are sent before a batch. It writes through a
    buffer of ``BLOCK_BYTES``: smaller buffers are copied into blocks of that size, so that a thousand small columns
    cost a few calls; larger ones pass as the batch's own. The output is cut where the messages begin, by the lengths in
    their headers, and FlightData's fields are put between.

Copies
    A buffer of at least ``BLOCK_BYTES`` is copied only by :meth:`MessageWriter.keep`, once; a smaller one twice, a
    block at a time. Arrow's writer makes new buffers where a batch's cannot be sent as they are, such as the offsets of
    a slice.

Who holds the data
    After :meth:`MessageWriter.add` the waiting messages refer to the batch's memory, which may be part of a much
    larger allocation, or be overwritten by its owner. :meth:`MessageWriter.keep` copies it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from flight_server.protocol import CHECKED_LENGTH, LENGTH, InvalidRequest, end_of_put, ipc_framing, wire
from flight_server.protocol.checksums import message_crc32c, running_crc32c, sent_crc32c

from .compression import BufferCompressor, Pieces

BLOCK_BYTES = 8 << 10
MAX_MESSAGE_BYTES = (1 << 31) - 1

_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000
_PREFIX_BYTES = 8  # of an IPC message: continuation and length of its header

Part = bytes | memoryview


class MessageWriter:
    """The messages of one put, with batches of ``schema``. After an error of ``add`` it is unusable. ``codec``:
    pyarrow's, for all buffers.
    """

    def __init__(self, schema: pa.Schema, codec: str | None = None) -> None:
        self._header = ipc_framing.schema_header(schema.serialize().to_pybytes())
        self._sink = _Sink()
        self._file = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), BLOCK_BYTES)
        options = pa.ipc.IpcWriteOptions(compression=codec)
        self._writer = pa.ipc.new_stream(self._file, schema, options=options)
        self.compressor: BufferCompressor | None = None
        self._metadata: deque[bytes] = deque()
        self._taken_bytes = 0
        self._checked = False
        self._running_crc32c = 0

    @property
    def running_crc32c(self) -> int | None:
        """The running checksum of all taken messages, also the first; None without ``checked``."""
        return self._running_crc32c if self._checked else None

    def opening(self, descriptor: bytes, *, checked: bool = False) -> list[Part]:
        """Descriptor and schema as the first message. With ``checked`` all messages have checksums."""
        self._checked = checked
        start = wire.field(_DESCRIPTOR, descriptor) + wire.field(_HEADER, self._header)
        return [self._frame(start, self._header, descriptor=descriptor)]

    def metadata_only(self, metadata: bytes) -> Part:
        return self._frame(wire.field(_METADATA, metadata), metadata=metadata)

    def end(self) -> Part:
        return end_of_put(self.running_crc32c)

    def add(self, batch: Any, metadata: bytes = b"") -> None:
        """Encode a batch, after the dictionaries that it needs. Raises pa.ArrowException: the batch has another schema,
        or cannot be encoded.
        """
        self._metadata.append(metadata)
        self._writer.write_batch(batch)

    def keep(self) -> None:
        self._sink.keep()

    @property
    def waiting_bytes(self) -> int:
        return int(self._file.tell()) - self._taken_bytes

    def take(self) -> list[Part]:
        """The waiting messages, ready to be sent. Raises InvalidRequest: a message is larger than
        ``MAX_MESSAGE_BYTES``, Arrow Flight's own limit.
        """
        self._file.flush()
        self._taken_bytes = int(self._file.tell())
        written = Pieces(self._sink.take())
        out: list[Part] = []
        while written:
            out += self._next_message(written)
        return out

    def _next_message(self, written: Pieces) -> Iterator[Part]:
        (header_bytes,) = struct.unpack_from("<i", written.joined(_PREFIX_BYTES), 4)
        encoded = ipc_framing.IpcHeader(written.joined(header_bytes))
        kind, content = encoded.kind, written.take(encoded.body_bytes)
        if kind is ipc_framing.MessageKind.SCHEMA:
            return  # ``opening`` has sent it with the descriptor
        header: Part = encoded.data
        body: Sequence[Part] = content
        metadata = b""
        if kind is ipc_framing.MessageKind.RECORD_BATCH:
            metadata = self._metadata.popleft()  # dictionary messages have none
            if self.compressor is not None:
                header, body = self.compressor.compressed(encoded, content) or (header, content)
        fields = wire.field(_HEADER, header) + (wire.field(_METADATA, metadata) if metadata else b"")
        head = wire.field_head(_BODY, sum(map(len, body)))
        yield self._frame(fields + head, header, body, metadata=metadata)
        yield from body

    def _frame(
        self,
        start: bytes,
        header: Part = b"",
        body: Sequence[Part] = (),
        *,
        metadata: bytes = b"",
        descriptor: bytes = b"",
    ) -> bytes:
        size_bytes = len(start) + sum(map(len, body))
        if size_bytes > MAX_MESSAGE_BYTES:
            raise InvalidRequest(
                f"a batch takes {size_bytes} bytes, and a message of Arrow Flight has at most {MAX_MESSAGE_BYTES}: "
                "write smaller batches",
                limit_bytes=MAX_MESSAGE_BYTES,
            )
        if not self._checked:
            return LENGTH.pack(size_bytes) + start
        checksum = sent_crc32c(message_crc32c(header, *body), metadata, descriptor)
        self._running_crc32c = running_crc32c(self._running_crc32c, checksum)
        return CHECKED_LENGTH.pack(size_bytes, checksum) + start


class _Sink:
    """The file of Arrow's writer: keeps references to the buffers that it is given."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[Any] = []
        # The list's own method: Arrow calls it for each block and each large buffer.
        self.write = self._parts.append

    def take(self) -> list[memoryview]:
        parts = [memoryview(part) for part in self._parts]
        self._parts.clear()
        return parts

    def keep(self) -> None:
        self._parts[:] = [part if isinstance(part, bytes) else part.to_pybytes() for part in self._parts]

    def flush(self) -> None:
        """No buffer to flush."""

    def close(self) -> None:
        """Nothing is open."""
