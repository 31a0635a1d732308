"""FrameDecoder: checks a producer's messages before any of them is accepted.

Guarantee: Arrow's own reader decodes a schema or record batch that ``feed`` accepts, after all messages fed before it.
pyarrow's client ends a read *silently* at a truncated, garbage or empty frame, so no such frame may be stored. A
dictionary is decoded with the batch that follows it, and is not sent if none does. A message without a header is
accepted as app_metadata alone. The first header must be a schema.

How
    One ``pyarrow.ipc`` stream reader per producer reads views of the received messages, so decoding copies nothing
    (about 4 µs for a batch of 1 MiB). It keeps dictionaries as a reader of the dataset will: replaced, extended by
    deltas, nested. The decoded batch is validated and dropped; the message is stored as it came.

Two steps
    ``inspect`` looks at the framing only, in microseconds. It takes the decoded size from the sizes in front of
    compressed buffers, so a message that would exceed the limit is never decompressed. ``decode`` does the work; for a
    ``costly`` message the caller runs it in a thread.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from flight_server.protocol import BadFrame, DamagedMessage, ipc_framing, wire
from flight_server.protocol.checksums import message_crc32c, sent_crc32c

from .schema_size import HeaderSize, measure
from .schemas import SchemaMessage, check_text

COSTLY_BYTES = 4 << 20
"""A body of this size takes up to 2 ms to decode (UTF-8 text), as long as the event loop may be held."""
COSTLY_HEADER_BYTES = 64 << 10
"""A header of this size takes milliseconds to check."""
_DECODED_SCHEMA_COST = 4
"""The message, Arrow's copy of its header, ours, and one while ours is made."""
_DECOMPRESSION_COST = 8  # decompressing a byte takes about as long as checking eight


class Inspected(NamedTuple):
    """A message whose framing is right. ``decoded_bytes``: of its decompressed body, or of all copies of a schema."""

    parts: wire.FlightData
    header: ipc_framing.IpcHeader | None
    decoded_bytes: int = 0
    costly: bool = False
    kind: ipc_framing.MessageKind = ipc_framing.MessageKind.NONE


class Accepted(NamedTuple):
    """An accepted message.

    ``metadata``: its app_metadata, a large one of a batch as a view of the message. ``crc32c``: of its IPC message.
    ``sent_crc32c``: of all its parts, see ``checksums``. ``copied_bytes``: how much the decoder's copies grow with this
    dictionary. ``batch``: if the decoder ``keeps_batches``; it refers to the message.
    """

    kind: ipc_framing.MessageKind
    metadata: bytes | memoryview
    rows: int = 0
    crc32c: int = 0
    sent_crc32c: int = 0
    schema: SchemaMessage | None = None
    dictionary_id: int = 0
    dictionary_delta: bool = False
    copied_bytes: int = 0
    batch: pa.RecordBatch | None = None


class _Feed:
    """The reader's file: returns views, never blocks."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []

    def read(self, size: int = -1) -> bytes | memoryview:
        if not self.parts:
            return b""
        part = self.parts[0]
        if 0 <= size < len(part):
            self.parts[0] = part[size:]
            return part[:size]
        del self.parts[0]
        return part

    def close(self) -> None:
        self.parts.clear()


class FrameDecoder:
    """The state of one producer's stream. ``max_message_bytes``: also of a decompressed message. ``full_validation``:
    check every offset and UTF-8 text, too.
    """

    def __init__(
        self, *, max_message_bytes: int, full_validation: bool = True, max_schema_bytes: int | None = None
    ) -> None:
        self._max_schema_bytes = max_schema_bytes
        self._max_message_bytes = max_message_bytes
        self._full_validation = full_validation
        self.keeps_batches = False
        self._feed = _Feed()
        self._reader: Any = None
        self._schema_size: HeaderSize | None = None
        self._batches = 0
        self._descriptor: bytes | None = None
        self._pending_bytes = 0  # decoded bytes of dictionaries that wait for the next batch
        self._dictionaries: dict[int, tuple[int, int]] = {}  # decoded and copied bytes of each in force

    def feed(self, message: bytes) -> Accepted:
        """Both steps. Raises BadFrame: it is not valid at this place. The decoder must not be used again."""
        return self.decode(self.inspect(message))

    def inspect(self, message: bytes) -> Inspected:
        """Look at the next message's framing, in any one thread (:meth:`has_large_header`). Raises as :meth:`feed`."""
        if len(message) > self._max_message_bytes:
            raise self._too_large(len(message), "has")
        parts = wire.locate(message)
        if parts.descriptor or self._descriptor is None:
            self._check_descriptor(parts.descriptor)
        if not parts.header:
            return Inspected(parts, None)
        header = ipc_framing.IpcHeader(parts.header)
        kind = header.kind
        costly = len(parts.header) > COSTLY_HEADER_BYTES
        if kind is ipc_framing.MessageKind.SCHEMA:
            self._check_schema_size(len(parts.header))
            return Inspected(parts, header, _DECODED_SCHEMA_COST * len(parts.header), costly, kind)
        if self._reader is None:
            raise BadFrame("the first message with a header must be the schema")
        if kind not in (ipc_framing.MessageKind.DICTIONARY, ipc_framing.MessageKind.RECORD_BATCH):
            raise BadFrame("the header is neither a schema, a dictionary nor a record batch")
        decompressed_bytes = header.decompressed_bytes(partial(ipc_framing.number_at, parts.body))
        if decompressed_bytes > self._max_message_bytes:
            raise self._too_large(decompressed_bytes, "decompresses to")
        cost_bytes = len(parts.body) + _DECOMPRESSION_COST * decompressed_bytes
        if kind is ipc_framing.MessageKind.DICTIONARY:
            self._pending_bytes += cost_bytes
        else:
            costly |= cost_bytes + self._pending_bytes > COSTLY_BYTES
        return Inspected(parts, header, decompressed_bytes or len(parts.body), costly, kind)

    @staticmethod
    def has_large_header(message: bytes) -> bool:
        """Whether :meth:`inspect` takes long. Raises as :meth:`feed`."""
        return len(message) > COSTLY_HEADER_BYTES and len(wire.locate(message).header) > COSTLY_HEADER_BYTES

    def measure(self, inspected: Inspected) -> HeaderSize:
        """The sizes of this schema, computed once; the caller uses a thread if it is costly. Raises as :meth:`feed`."""
        if self._schema_size is None:
            assert inspected.header is not None
            try:
                self._schema_size = measure(inspected.header)
            except BadFrame as bad:
                raise BadFrame(f"the schema message is not valid: {bad.message}") from None
        return self._schema_size

    def decode(self, inspected: Inspected, declared: int | None = None) -> Accepted:
        """Check the contents of the message inspected last. May run in any one thread. Raises DamagedMessage: its
        checksum is not the one that the producer has ``declared``; BadFrame: as :meth:`feed`.
        """
        parts, header, kind = inspected.parts, inspected.header, inspected.kind
        checksum = message_crc32c(parts.header, parts.body)
        sent = sent_crc32c(checksum, parts.metadata, parts.descriptor)
        if declared is not None and declared != sent:
            raise DamagedMessage(
                f"a message was damaged on its way: its checksum is {sent:08x}, and its producer sent {declared:08x}; "
                "write it again"
            )
        large = len(parts.metadata) > COSTLY_HEADER_BYTES and kind is not ipc_framing.MessageKind.NONE
        metadata = parts.metadata if large else bytes(parts.metadata)
        common: dict[str, Any] = {"metadata": metadata, "crc32c": checksum, "sent_crc32c": sent}
        if header is None:
            return Accepted(kind, **common)
        if kind is ipc_framing.MessageKind.SCHEMA:
            return Accepted(kind, **common, schema=self._open(inspected))
        measure(header)
        if kind is ipc_framing.MessageKind.DICTIONARY:
            return self._take_dictionary(inspected, header, common)
        batch = self._take_batch(parts)
        return Accepted(kind, **common, rows=batch.num_rows, batch=batch if self.keeps_batches else None)

    def end(self) -> None:
        """Release what the reader holds. A thread that still decodes finishes."""
        self._feed = _Feed()
        self._reader = None

    def _too_large(self, size_bytes: int, verb: str) -> BadFrame:
        return BadFrame(
            f"the message {verb} {size_bytes} bytes, more than this server's limit of "
            f"{self._max_message_bytes}: write smaller batches, or raise --max-message and --memory-limit",
            limit_bytes=self._max_message_bytes,
        )

    def _check_schema_size(self, size_bytes: int) -> None:
        if self._max_schema_bytes is not None and size_bytes > self._max_schema_bytes:
            raise BadFrame(
                f"the schema has {size_bytes} bytes with its metadata, more than this server's limit of "
                f"{self._max_schema_bytes}: write fewer columns or less metadata, or raise --max-schema",
                limit_bytes=self._max_schema_bytes,
            )

    def _check_descriptor(self, descriptor: memoryview) -> None:
        # Arrow's reader parses it in every message, and stops silently at one that is not a descriptor.
        if self._descriptor is None:
            self._descriptor = bytes(descriptor)
        elif descriptor and descriptor != self._descriptor:
            raise BadFrame("a later message carries another descriptor; one stream writes to one target")

    def _push(self, parts: wire.FlightData) -> None:
        header = parts.header
        self._feed.parts += (ipc_framing.CONTINUATION, len(header).to_bytes(4, "little"), header)
        if parts.body:
            self._feed.parts.append(parts.body)

    def _open(self, inspected: Inspected) -> SchemaMessage:
        parts = inspected.parts
        if self._reader is not None:
            raise BadFrame("a second schema came; one stream carries one schema")
        if parts.body:
            raise BadFrame("the schema message has a body")
        self.measure(inspected)
        self._push(parts)
        try:
            self._reader = pa.ipc.open_stream(pa.PythonFile(self._feed, mode="r"))
            check_text(self._reader.schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadFrame(f"the schema message is not valid: {_first_line(error)}") from None
        if self._feed.parts:
            raise BadFrame("the schema message is longer than it says")
        # Padded to 8 bytes as in IPC streams, which Flight's writers do not do: one schema is one text.
        return SchemaMessage(bytes(parts.header) + b"\0" * (-len(parts.header) % 8))

    def _take_dictionary(
        self, inspected: Inspected, header: ipc_framing.IpcHeader, common: dict[str, Any]
    ) -> Accepted:
        number, delta = header.dictionary_id
        self._push(inspected.parts)
        # Arrow copies what it decompresses, and joins a dictionary with its deltas into a new one.
        before_bytes, copied_before_bytes = self._dictionaries.get(number, (0, 0)) if delta else (0, 0)
        decoded_bytes = before_bytes + inspected.decoded_bytes
        copies = delta or inspected.decoded_bytes != len(inspected.parts.body)
        copied_bytes = decoded_bytes if copies else 0
        self._dictionaries[number] = (decoded_bytes, copied_bytes)
        return Accepted(
            header.kind,
            **common,
            dictionary_id=number,
            dictionary_delta=delta,
            copied_bytes=copied_bytes - copied_before_bytes,
        )

    def _take_batch(self, parts: wire.FlightData) -> pa.RecordBatch:
        feed, reader, header = self._feed, self._reader, parts.header
        feed.parts += (ipc_framing.CONTINUATION, len(header).to_bytes(4, "little"), header)
        if parts.body:
            feed.parts.append(parts.body)
        self._pending_bytes = 0
        try:
            batch = reader.read_next_batch()
            batch.validate(full=self._full_validation)
        except StopIteration:
            raise BadFrame(f"record batch {self._batches} is shorter than it says") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadFrame(f"record batch {self._batches} is not valid: {_first_line(error)}") from None
        if feed.parts:
            raise BadFrame(f"record batch {self._batches} is longer than it says")
        self._batches += 1
        return batch


def _first_line(error: BaseException) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0][:300]
    if "whole number of days" in line:
        line += "; a date64 has no time of day: cast the column to timestamp('ms'), or cut the time off"
    return line
