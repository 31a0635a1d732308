"""Encodes record batches as the messages of a put on the bulk lane, large buffers without a copy.

Guarantee: the messages are those of pyarrow's DoPut for the same batches and options, byte for byte, dictionaries and
their replacements included; only the schema's header may be padded to eight bytes. So the stored frames do not depend
on the lane. ``protocol.put_framing`` has the bytes before each message.

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

Compression
    Of each buffer by itself, as Arrow's IPC format has it: every Arrow reader that has the codec reads the rows that
    were written. The server stores, spills and sends the compressed bytes; it decompresses a batch once, to check it.

    ``lz4`` and ``zstd`` are Arrow's own: pyarrow compresses every buffer, also one that does not shrink. ``auto`` is
    LZ4 where it pays: the first batch with a buffer of ``LEAST_BYTES`` decides for itself and all after it, by samples,
    the middle ``SAMPLE_BYTES`` of each buffer. Smaller buffers count as they are. The writer that compresses sends
    dictionaries again. On the gRPC lane, where a call has one codec, a put whose first batch is smaller is not
    compressed.

Worth it
    To shrink to ``MOST``; where the server runs on this host, to ``MOST_ON_THIS_HOST``. Measured over loopback, CPU
    seconds per GB to write, check and read, as it is and compressed: text that shrinks to 0.02 1.4 and 0.5, text that
    shrinks to 0.4 1.2 and 3.1, numbers that shrink to a half 1.0 and 3.6.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from flight_server.protocol import (
    CHECKED_LENGTH,
    InvalidRequest,
    ipc_framing,
    is_loopback,
    wire,
)
from flight_server.protocol.checksums import message_crc32c, running_crc32c, sent_crc32c
from spark_client.arrow import KeptBuffers

Part = bytes | memoryview

MOST = 2 / 3
MOST_ON_THIS_HOST = 1 / 8
SAMPLE_BYTES = 64 << 10
LEAST_BYTES = 8 << 10
_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000
BLOCK_BYTES = 8 << 10
MAX_MESSAGE_BYTES = (1 << 31) - 1
_PREFIX_BYTES = 8  # of an IPC message: continuation and length of its header


class Pieces:
    """The bytes of ``parts``, one after the other, consumed from the front."""

    def __init__(self, parts: Iterable[memoryview]) -> None:
        self._parts = deque(parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def take(self, size_bytes: int) -> list[memoryview]:
        """The next ``size_bytes``, without a copy."""
        out = []
        while size_bytes:
            part = self._parts[0]
            if len(part) > size_bytes:
                part, self._parts[0] = part[:size_bytes], part[size_bytes:]
            else:
                del self._parts[0]
            size_bytes -= len(part)
            out.append(part)
        return out

    def joined(self, size_bytes: int) -> bytes:
        return b"".join(self.take(size_bytes))


def most_to(host: str, own: str | None = None) -> float:
    """To which part of its size a buffer must shrink on its way to ``host``; ``own`` is this side's address."""
    return MOST_ON_THIS_HOST if host in ("", own) or is_loopback(host) else MOST


def is_large(batch: Any) -> bool:
    """Whether samples of the batch say what the data is like."""
    buffers = (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None)
    # Those of a slice are its parent's, and only the writer knows which part is its own.
    may_be = any(buffer.size >= LEAST_BYTES for buffer in buffers)
    return may_be and any(len(buffer) >= LEAST_BYTES for buffer in _sent_buffers(batch))


def codec_for(batch: Any, most: float) -> str | None:
    """LZ4, if the samples of the buffers that are sent for the batch together shrink to ``most``."""
    codec = pa.Codec("lz4")
    before = after = 0.0
    for buffer in _sent_buffers(batch):
        before += len(buffer)
        ratio = _sample_ratio(codec, buffer) if len(buffer) >= LEAST_BYTES else 1.0
        after += len(buffer) * min(1.0, ratio)
    return "lz4" if after <= most * before and before > 0 else None


def _sent_buffers(batch: Any) -> list[memoryview]:
    """Those of the batch's rows, and of its dictionaries, without a copy where Arrow's writer makes none."""
    sink = KeptBuffers()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)
    # Arrow writes headers and padding as bytes.
    return [part for part in sink.take() if isinstance(part.obj, pa.Buffer)]


def _sample_ratio(codec: Any, data: memoryview) -> float:
    """To which part of its size the middle of the data shrinks."""
    start = max(0, len(data) - SAMPLE_BYTES) // 2
    sample = data[start : start + SAMPLE_BYTES]
    return float(codec.compress(sample).size / len(sample))


class MessageWriter:
    """The messages of one put, with batches of ``schema``. After an error of ``add`` it is unusable. ``codec``:
    pyarrow's, for all buffers; while ``most`` is set, the first large batch decides it by :func:`codec_for`.
    ``running_crc32c``: the running checksum of all taken messages, also the first.
    """

    def __init__(self, schema: pa.Schema, codec: str | None = None) -> None:
        self._schema = schema
        self._codec = codec
        self.most: float | None = None
        self._header = ipc_framing.schema_header(schema.serialize().to_pybytes())
        self._sink = KeptBuffers()
        self._file = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), BLOCK_BYTES)
        self._writer: Any = None
        self._metadata: deque[bytes] = deque()
        self._taken_bytes = 0
        self.running_crc32c = 0

    def opening(self, descriptor: bytes) -> list[Part]:
        """Descriptor and schema as the first message."""
        start = wire.field(_DESCRIPTOR, descriptor) + wire.field(_HEADER, self._header)
        return [self._frame(start, self._header, descriptor=descriptor)]

    def metadata_only(self, metadata: bytes) -> Part:
        return self._frame(wire.field(_METADATA, metadata), metadata=metadata)

    def end(self) -> Part:
        return CHECKED_LENGTH.pack(0, self.running_crc32c)

    def add(self, batch: Any, metadata: bytes = b"") -> None:
        """Encode a batch, after the dictionaries that it needs. Raises pa.ArrowException: the batch has another schema,
        or cannot be encoded.
        """
        if self.most is not None and is_large(batch):
            self._codec, self.most = codec_for(batch, self.most), None
            if self._codec is not None:
                self._writer = None
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression=self._codec)
            self._writer = pa.ipc.new_stream(self._file, self._schema, options=options)
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
        # Dictionary messages have no metadata.
        metadata = self._metadata.popleft() if kind is ipc_framing.MessageKind.RECORD_BATCH else b""
        fields = wire.field(_HEADER, encoded.data) + (wire.field(_METADATA, metadata) if metadata else b"")
        head = wire.field_head(_BODY, encoded.body_bytes)
        yield self._frame(fields + head, encoded.data, content, metadata=metadata)
        yield from content

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
        checksum = sent_crc32c(message_crc32c(header, *body), metadata, descriptor)
        self.running_crc32c = running_crc32c(self.running_crc32c, checksum)
        return CHECKED_LENGTH.pack(size_bytes, checksum) + start
