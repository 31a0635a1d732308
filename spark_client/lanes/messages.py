"""Encodes record batches as the messages of a put on the bulk lane, large buffers without a copy.

Guarantee: the messages are those of pyarrow's DoPut for the same batches and options, byte for byte, dictionaries and
their replacements included; only the schema's header may be padded to eight bytes. So the stored frames do not depend
on the lane. The exception are buffers that a :class:`BufferCompressor` has made smaller.
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

Compression
    Of each buffer of a record batch by itself, as Arrow's IPC format has it: every Arrow reader that has the codec
    reads the rows that were written. The server stores, spills and sends the compressed bytes; it decompresses a batch
    once, to check it.

    ``lz4`` and ``zstd`` are Arrow's own: pyarrow compresses every buffer, also one that does not shrink. ``auto`` is
    LZ4 where it pays. On the bulk lane each buffer of the schema (a column's values, its offsets, its validity) is
    decided by itself. The middle ``SAMPLE_BYTES`` of it are compressed first, then all of it, and from then on in every
    batch until a batch's does not shrink. A buffer that does not shrink is sent as it is, and is tried again
    ``REST_BATCHES`` batches later. Not compressed: buffers below ``LEAST_BYTES``, dictionaries, and batches of views,
    whose buffers vary. On the gRPC lane pyarrow's client has one codec for a whole put: the samples of the first batch
    decide.

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
    IpcHeader,
    MessageKind,
    Table,
    ipc_framing,
    wire,
)
from flight_server.protocol.checksums import message_crc32c, running_crc32c, sent_crc32c
from spark_client.arrow import KeptBuffers
from spark_client.connection import is_loopback

Part = bytes | memoryview

MOST = 2 / 3
MOST_ON_THIS_HOST = 1 / 8
SAMPLE_BYTES = 64 << 10
LEAST_BYTES = 8 << 10
REST_BATCHES = 32
_ALIGNMENT_BYTES = 8
_AS_IT_IS = struct.pack("<q", -1)
_LZ4_FRAME = 0  # ``CompressionType`` of Arrow's ``Message.fbs``
# Arrow's Message with a RecordBatch with a BodyCompression, up to the nodes. Offsets are from their own place.
_FIXED = struct.Struct(
    "<I"  # 0: of the message, at 16
    "6H"  # 4: the message's layout: its size, its table's, and version, kind, header, length of the body in it
    "iIqhBx"  # 16: the way back to the layout; header, at 48; length of the body; version; kind
    "6H"  # 36: the batch's layout: rows, nodes, buffers, compression
    "iIqII"  # 48: the way back; nodes, at 92; rows; buffers; compression, at 80
    "3H2x"  # 72: the compression's layout: codec
    "ib7x"  # 80: the way back; codec; the nodes' number is at 92
)
_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000
_NODES_AT = 92
_V5 = 4
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


def shrinks(batch: Any, most: float) -> bool:
    """Whether the samples of the batch's buffers together shrink to ``most``."""
    codec = pa.Codec("lz4")
    before = after = 0.0
    for buffer in (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None):
        before += buffer.size
        ratio = _sample_ratio(codec, memoryview(buffer)) if buffer.size >= LEAST_BYTES else 1.0
        after += buffer.size * min(1.0, ratio)
    return after <= most * before and before > 0


class BufferCompressor:
    """``auto`` on the bulk lane, for the record batches of one put."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._codec = pa.Codec("lz4")
        self._batches = 0
        self._shrinks: set[int] = set()
        self._rests: dict[int, int] = {}  # until which batch a buffer is not tried

    def compressed(self, header: IpcHeader, body: Sequence[memoryview]) -> tuple[bytes, list[Part]] | None:
        """Header and body of the message with its compressed buffers; None to send it as it is."""
        self._batches += 1
        batch = header.message.table(2)
        if batch is None or batch.slot(4):  # the number of buffers of each column of views
            return None
        buffers = list(struct.iter_unpack("<qq", _vector(header, batch, 2)))
        tried = [
            number
            for number, (_, size_bytes) in enumerate(buffers)
            if size_bytes >= LEAST_BYTES and self._rests.get(number, 0) <= self._batches
        ]
        if not tried:
            return None
        data = list(_each(buffers, body))
        replaced = {number: shrunk for number in tried if (shrunk := self._shrunk(number, data[number]))}
        if not replaced:
            return None
        out = _Out()
        for number, (_, size_bytes) in enumerate(buffers):
            if number in replaced:
                out.add(struct.pack("<q", size_bytes), replaced[number])
            elif size_bytes:
                out.add(_AS_IT_IS, *data[number])
            else:
                out.add()
        return _header(header, batch, out.places, out.size_bytes), out.finish()

    def _shrunk(self, number: int, data: Sequence[Part]) -> memoryview | None:
        # A buffer of this size is one piece: see ``messages``.
        whole = memoryview(data[0] if len(data) == 1 else b"".join(data))
        if number in self._shrinks or _sample_ratio(self._codec, whole) <= self._most:
            shrunk = self._codec.compress(whole)
            if shrunk.size <= self._most * len(whole):
                self._shrinks.add(number)
                return memoryview(
                    shrunk.slice()
                )  # of ``shrunk`` it would have the size before pyarrow's resize
        self._shrinks.discard(number)
        self._rests[number] = self._batches + REST_BATCHES
        return None


class _Out:
    """A body: its buffers' places, and their bytes in few parts, large ones without a copy."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        self.size_bytes = 0
        self._parts: list[Part] = []
        self._small: list[Part] = []

    def add(self, *data: Part) -> None:
        size_bytes = sum(map(len, data))
        padding_bytes = -size_bytes % _ALIGNMENT_BYTES
        self.places.append((self.size_bytes, size_bytes))
        self.size_bytes += size_bytes + padding_bytes
        for part in (*data, bytes(padding_bytes)):
            if len(part) < LEAST_BYTES:
                self._small.append(part)
            else:
                self.finish().append(part)

    def finish(self) -> list[Part]:
        """The parts of all buffers so far; none is empty."""
        if small := b"".join(self._small):
            self._parts.append(small)
        self._small.clear()
        return self._parts


def _sample_ratio(codec: Any, data: memoryview) -> float:
    """To which part of its size the middle of the data shrinks."""
    start = max(0, len(data) - SAMPLE_BYTES) // 2
    sample = data[start : start + SAMPLE_BYTES]
    return float(codec.compress(sample).size / len(sample))


def _each(buffers: Iterable[tuple[int, int]], body: Sequence[memoryview]) -> Iterator[Sequence[Part]]:
    """The pieces of each buffer, without the padding between them."""
    pieces, at = Pieces(body), 0
    for offset, size_bytes in buffers:
        pieces.take(offset - at)
        yield pieces.take(size_bytes)
        at = offset + size_bytes


def _vector(header: IpcHeader, batch: Table, field: int) -> memoryview:
    """The elements, of 16 bytes each, of a batch's vector."""
    start, count = batch.vector(field)
    return header.data[start : start + 16 * count]


def _header(header: IpcHeader, batch: Table, places: Sequence[tuple[int, int]], body_bytes: int) -> bytes:
    nodes = _vector(header, batch, 1)
    buffers_at = _NODES_AT + 4 + len(nodes) + 4
    fixed = _FIXED.pack(
        *(16, 12, 20, 16, 18, 4, 8),
        *(12, 48 - 20, body_bytes, _V5, MessageKind.RECORD_BATCH),
        *(12, 24, 8, 4, 16, 20),
        *(12, _NODES_AT - 52, batch.long(0), buffers_at - 64, 80 - 68),
        *(6, 8, 4),
        *(8, _LZ4_FRAME),
    )
    packed = b"".join(struct.pack("<qq", *place) for place in places)
    counts = struct.pack("<I", len(nodes) // 16), bytes(4) + struct.pack("<I", len(places))
    return b"".join((fixed, counts[0], nodes, counts[1], packed))


class MessageWriter:
    """The messages of one put, with batches of ``schema``. After an error of ``add`` it is unusable. ``codec``:
    pyarrow's, for all buffers. ``running_crc32c``: the running checksum of all taken messages, also the first.
    """

    def __init__(self, schema: pa.Schema, codec: str | None = None) -> None:
        self._header = ipc_framing.schema_header(schema.serialize().to_pybytes())
        self._sink = KeptBuffers()
        self._file = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), BLOCK_BYTES)
        options = pa.ipc.IpcWriteOptions(compression=codec)
        self._writer = pa.ipc.new_stream(self._file, schema, options=options)
        self.compressor: BufferCompressor | None = None
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
        checksum = sent_crc32c(message_crc32c(header, *body), metadata, descriptor)
        self.running_crc32c = running_crc32c(self.running_crc32c, checksum)
        return CHECKED_LENGTH.pack(size_bytes, checksum) + start
