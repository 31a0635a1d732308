"""FrameDecoder: checks what a producer sends before any of it is accepted.

Guarantee: a message that :meth:`FrameDecoder.feed` accepts is a schema, dictionary or record batch
that Arrow's own reader decodes after all that was fed before it. pyarrow's client ends a read
*silently* at a truncated, garbage or empty frame; so no such frame may ever be stored.

How
    One ``pyarrow.ipc`` stream reader per producer pulls from a file object that hands it views of the
    received messages, so decoding copies nothing (about 4 µs for a batch of 1 MiB). The reader keeps
    the producer's dictionaries as a reader of the dataset will: replaced, extended by deltas, nested.
    The decoded batch is validated (``full``: also every offset and every UTF-8 text) and dropped; what
    is stored is the message as it came.

Schemas
    The first header must be a schema. A dataset has one: later producers must send an equal one
    (metadata aside). Readers get the dataset's schema message with every producer's dictionaries, so
    the dictionary ids must agree too. pyarrow numbers them by their place in the schema, and so do
    other implementations by default; a producer that numbers otherwise is refused, unless its schema
    message is the dataset's byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from . import wire
from .errors import BadFrame, InvalidRequest


def has_dictionaries(schema: pa.Schema) -> bool:
    """True if a column is dictionary-encoded, at any depth."""
    return any(_has_dictionaries(field.type) for field in schema)


def _has_dictionaries(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionaries(kind.storage_type)
    if pa.types.is_run_end_encoded(kind):
        return _has_dictionaries(kind.value_type)
    return any(_has_dictionaries(kind.field(i).type) for i in range(kind.num_fields))


@dataclass(frozen=True)
class SchemaMessage:
    """A schema and the IPC header that a producer sent it as."""

    schema: pa.Schema
    header: bytes

    @classmethod
    def of(cls, schema: pa.Schema) -> SchemaMessage:
        return cls(schema, wire.schema_header(schema.serialize().to_pybytes()))

    def canonical(self) -> bool:
        """True if the dictionary ids are those that pyarrow gives."""
        return self.header == SchemaMessage.of(self.schema).header

    def check_same(self, other: SchemaMessage, dataset: str) -> None:
        """``other`` may write to a dataset of this schema.

        Raises:
            InvalidRequest: it may not; the message names the first difference.
        """
        if self.header == other.header:
            return
        if not self.schema.equals(other.schema, check_metadata=False):
            raise InvalidRequest(
                f"the schema differs from dataset {dataset!r}: {_difference(self.schema, other.schema)}; "
                "cast the batches, or write to another dataset",
                dataset=dataset,
            )
        if has_dictionaries(self.schema) and not (self.canonical() and other.canonical()):
            raise InvalidRequest(
                f"the dictionary ids of the schema differ from those of dataset {dataset!r}; "
                "number them by their place in the schema, or send plain values",
                dataset=dataset,
            )


def _difference(wanted: pa.Schema, given: pa.Schema) -> str:
    if wanted.names != given.names:
        return f"it has columns {given.names}, the dataset has {wanted.names}"
    for mine, theirs in zip(wanted, given, strict=True):
        if not mine.equals(theirs, check_metadata=False):
            return f"column {mine.name!r} is <{theirs}>, in the dataset <{mine}>"
    return "the columns differ"


@dataclass(frozen=True)
class Accepted:
    """What one message was. ``rows`` is 0 but for record batches; ``metadata`` is its app_metadata."""

    kind: wire.MessageKind
    metadata: bytes
    rows: int = 0
    schema: SchemaMessage | None = None
    dictionary_id: int = 0
    dictionary_delta: bool = False


class _Feed:
    """The file that the reader pulls from: hands out views, never blocks, never copies."""

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

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.parts.clear()


class FrameDecoder:
    """The state of one producer's stream.

    Args:
        max_message_bytes: larger messages are refused.
        full_validation: check every offset and text too, which costs a pass over string columns.
    """

    def __init__(self, *, max_message_bytes: int, full_validation: bool = True) -> None:
        self._max_message_bytes = max_message_bytes
        self._full_validation = full_validation
        self._feed = _Feed()
        self._reader: Any = None
        self._batches = 0

    def feed(self, message: bytes) -> Accepted:
        """Check one FlightData message.

        Raises:
            BadFrame: it is not what may come at this place. The decoder must not be used again.
        """
        if len(message) > self._max_message_bytes:
            raise BadFrame(
                f"the message has {len(message)} bytes, more than this server's limit of "
                f"{self._max_message_bytes}: write smaller batches, or raise --max-message-bytes",
                limit_bytes=self._max_message_bytes,
            )
        parts = wire.locate(message)
        metadata = bytes(parts.metadata)
        if not parts.header:
            return Accepted(wire.MessageKind.NONE, metadata)
        kind = wire.message_kind(parts.header)
        if kind is wire.MessageKind.SCHEMA:
            return Accepted(kind, metadata, schema=self._open(parts))
        if self._reader is None:
            raise BadFrame("the first message with a header must be the schema")
        if kind is wire.MessageKind.DICTIONARY:
            number, delta = wire.dictionary_id(parts.header)
            self._push(parts)
            return Accepted(kind, metadata, dictionary_id=number, dictionary_delta=delta)
        if kind is not wire.MessageKind.RECORD_BATCH:
            raise BadFrame("the header is neither a schema, a dictionary nor a record batch")
        return Accepted(kind, metadata, rows=self._decode(parts))

    def end(self) -> None:
        """The producer has ended: let go of what the reader holds. Dictionaries that no batch followed
        were never decoded, and nobody is sent them.
        """
        self._feed.close()
        self._reader = None

    def _push(self, parts: wire.FlightData) -> None:
        header = parts.header
        self._feed.parts += (wire.CONTINUATION, len(header).to_bytes(4, "little"), header)
        if parts.body:
            self._feed.parts.append(parts.body)

    def _open(self, parts: wire.FlightData) -> SchemaMessage:
        if self._reader is not None:
            raise BadFrame("a second schema came; one stream carries one schema")
        if parts.body:
            raise BadFrame("the schema message has a body")
        self._push(parts)
        try:
            self._reader = pa.ipc.open_stream(pa.PythonFile(self._feed, mode="r"))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadFrame(f"the schema message is not valid: {_first_line(error)}") from None
        if self._feed.parts:
            raise BadFrame("the schema message is longer than it says")
        return SchemaMessage(self._reader.schema, bytes(parts.header))

    def _decode(self, parts: wire.FlightData) -> int:
        self._push(parts)
        try:
            batch = self._reader.read_next_batch()
            batch.validate(full=self._full_validation)
        except StopIteration:
            raise BadFrame(f"record batch {self._batches} is shorter than it says") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadFrame(f"record batch {self._batches} is not valid: {_first_line(error)}") from None
        if self._feed.parts:
            raise BadFrame(f"record batch {self._batches} is longer than it says")
        self._batches += 1
        return int(batch.num_rows)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
