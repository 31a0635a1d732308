"""An HTTP body as bursts of record batches: a whole chunk at once where possible, else one message at a time.

Guarantee: the batches are those of the Arrow stream in the body, each once and in order, however the body is cut into
chunks. Arrow's stream decoder finds the stream's end and its faults. If the server has sent checksums, a message with
another one is not decoded; the batches before it are returned before the error. A proxy's new chunks have none: their
messages are only summed up, for the totals at the end.

Whole chunks
    Our server sends each burst of messages as one chunk. A chunk of ``MIN_SCHEMAS`` times the schema message's size up
    to ``MAX_CHUNK_BYTES`` is received into one buffer, after a copy of the schema message, and decoded there: no call
    into Python for each message, 1.4 µs a batch instead of 6. A proxy may cut chunks elsewhere: from the first bytes
    on that are no whole message, an end marker, or refused by Arrow, the rest of the chunk is read one message at a
    time. Compressed messages may decode to many times the chunk: a burst ends with the message that brings its decoded
    bytes to ``MAX_CHUNK_BYTES``, and the chunk's next messages are decoded for the next burst.

One message
    Arrow's decoder asks for header and body by their lengths, through :class:`CheckedMessages`. It reads all other
    chunks, bodies without chunks, and schemas with dictionaries, which it must keep from message to message.

Copies
    One, by the kernel, into the buffers that the batches refer to. Values are aligned to 8 bytes, and to 64 if the
    message was read alone. The batches of one chunk share its buffer, so they are accounted for together. A checksum is
    computed over each piece as it comes, while the processor's cache has it.

Checksums
    If the server has sent a message's size and checksum (``flight_server.lanes.http.bulk_get``), its bytes reach the
    decoder only if both agree. If the first message has a checksum, a later one without is damaged. A damaged length
    takes no memory and waits for no bytes: it is first compared with the server's size.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from flight_server.protocol import BadFrame, ipc_framing
from flight_server.protocol.checksums import crc32c, message_crc32c
from spark_client.arrow import has_dictionary

from .http import Body
from .lane import BatchBurst

PREFIX_BYTES = 8
_PREFIX = struct.Struct("<4si")
MAX_CHUNK_BYTES = 4 << 20
MIN_SCHEMAS = 8
_MAX_SCHEMA_BYTES = 64 << 10
_ALIGNMENT_BYTES = 8
_PIECE_BYTES = 256 << 10


class DamagedArrival(ConnectionResetError):
    """A message differs from the one that the server has sent."""

    def __init__(self, how: str) -> None:
        super().__init__(f"a message was damaged on its way from the server: {how}")

    @classmethod
    def of(cls, sent: int, checksum: int) -> DamagedArrival:
        return cls(f"its checksum is {checksum:08x}, and was {sent:08x} when it was sent")


class MessageBytes(Protocol):
    """What of an ``http.Body`` is used here."""

    announced: deque[tuple[int, int]]

    def next_chunk_bytes(self) -> int: ...

    def read_buffer(self, size: int) -> pa.Buffer: ...


class MessageFile:
    """A file for Arrow's decoder that gets its messages one by one."""

    closed = False

    def __init__(self) -> None:
        self._pieces: deque[pa.Buffer] = deque()

    def _read_message(self) -> None:
        """Read the next message into ``_pieces``; an empty piece at the end."""
        raise NotImplementedError

    def read_buffer(self, size: int) -> pa.Buffer:
        """The next bytes for Arrow's decoder, fewer only at the end of a part or of all messages."""
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
        """For Arrow's decoder; what it reads from stays open."""


class CheckedMessages(MessageFile):
    """Read from a body."""

    def __init__(self, body: MessageBytes) -> None:
        super().__init__()
        self._body = body
        self.promised: bool | None = None
        """Whether the server sends checksums; not known before the first message, which is the schema."""
        self._checksums: list[int] = []

    def pop_checksums(self) -> list[int]:
        """The checksums of the record batches read since the last call."""
        checksums, self._checksums = self._checksums, []
        return checksums

    def _read_message(self) -> None:
        """As above.

        Raises:
            Damaged: see the module; or it is no Arrow message.
            ConnectionError: the body was cut.
        """
        body = self._body
        body.next_chunk_bytes()
        sent = body.announced.popleft() if body.announced else None
        prefix = body.read_buffer(PREFIX_BYTES)
        if prefix.size < PREFIX_BYTES:
            if prefix.size:
                raise ConnectionResetError("the body ended inside a message")
            self._pieces.append(prefix)
            return
        mark, header_bytes = _PREFIX.unpack(prefix)
        if sent is None and mark + prefix[4:].to_pybytes() == ipc_framing.END_OF_STREAM:
            self._pieces.append(prefix)
            return
        if self.promised is None:
            self.promised = sent is not None
        if sent is None and self.promised:
            raise DamagedArrival("it has no checksum")
        left_bytes = None if sent is None else sent[0] - PREFIX_BYTES
        most_bytes = header_bytes if left_bytes is None else left_bytes
        if mark != ipc_framing.CONTINUATION or header_bytes <= 0 or header_bytes > most_bytes:
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
        if sent is not None and sent[1] != checksum:
            raise DamagedArrival.of(sent[1], checksum)
        if kind is ipc_framing.MessageKind.RECORD_BATCH:
            self._checksums.append(checksum)
        self._pieces += [piece for piece in (prefix, header, content) if piece.size]

    def _part(self, size_bytes: int) -> pa.Buffer:
        part = self._body.read_buffer(size_bytes)
        if part.size < size_bytes:
            raise ConnectionResetError("the body ended inside a message")
        return part


class BurstReader:
    """The decoder of one body. The constructor waits for the schema.

    Raises:
        OSError: the body was cut, or a message is damaged.
        pa.ArrowException: the body does not begin with a schema message, or goes on with other than its record
            batches.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._checked = CheckedMessages(body)
        self._damage: DamagedArrival | None = None
        self._bursts: Iterator[BatchBurst] = iter(())
        first = b""
        if 0 < (size_bytes := body.next_chunk_bytes()) <= _MAX_SCHEMA_BYTES:
            first = body.read(size_bytes)
            body.give_back(memoryview(first))
        self._messages = pa.ipc.open_stream(pa.PythonFile(self._checked, mode="r"))
        self.schema: pa.Schema = self._messages.schema
        # The server's own bytes: pyarrow's Schema loses the byte order and the features.
        alone = body.between_chunks and len(first) % _ALIGNMENT_BYTES == 0
        self._schema_message = first if alone else b""
        if any(has_dictionary(field.type) for field in self.schema):
            self._schema_message = b""

    def read_burst(self) -> BatchBurst | None:
        """Wait for the next message; its batch and those of its chunk. None at Arrow's end of stream."""
        burst = next(self._bursts, None)
        if burst is None and self._damage is None and self._schema_message:
            size_bytes = self._body.next_chunk_bytes()
            if MIN_SCHEMAS * len(self._schema_message) <= size_bytes <= MAX_CHUNK_BYTES:
                self._bursts = self._read_chunk(size_bytes)
                burst = next(self._bursts, None)
        if burst is not None:
            return burst
        if self._damage is not None:
            raise self._damage
        try:
            batch, metadata = self._messages.read_next_batch_with_custom_metadata()
        except StopIteration:
            return None
        return BatchBurst([batch], checksums=self._checked.pop_checksums(), metadata=(metadata,))

    def _read_chunk(self, size_bytes: int) -> Iterator[BatchBurst]:
        """The next chunk's whole messages, up to a damaged one; the rest of the chunk is given back at the end."""
        start = len(self._schema_message)
        buffer = pa.allocate_buffer(start + size_bytes)
        view = memoryview(buffer).cast("B")
        view[:start] = self._schema_message
        ends, checksums = self._fill(view, start)
        if self._damage is not None and not ends:
            return
        source = pa.BufferReader(buffer.slice(0, ends[-1]) if ends else buffer)
        batches: list[pa.RecordBatch] = []
        metadata: list[Any] = []
        count = decoded_bytes = 0
        sums: list[int] = []
        try:
            messages = pa.ipc.open_stream(source)
            while True:
                batch, own = messages.read_next_batch_with_custom_metadata()
                end = source.tell()
                if ends and end != ends[count]:
                    break
                batches.append(batch)
                metadata.append(own)
                if ends:
                    sums.append(checksums[count])
                else:
                    sums.append(crc32c(view[start + PREFIX_BYTES : end]))
                count, start = count + 1, end
                decoded_bytes += batch.get_total_buffer_size()
                if decoded_bytes >= MAX_CHUNK_BYTES:
                    yield BatchBurst(batches, buffer.size, sums, metadata)
                    batches, sums, metadata, decoded_bytes = [], [], [], 0
        except (StopIteration, OSError, pa.ArrowException):
            pass
        if ends:
            if count < len(ends):
                self._damage = DamagedArrival("its length is another one")
        elif start < buffer.size:
            self._body.give_back(view[start:])
        if batches:
            yield BatchBurst(batches, buffer.size, sums, metadata)

    def _fill(self, view: memoryview, start: int) -> tuple[list[int], list[int]]:
        """Receive the chunk; the ends and checksums of its messages up to the first damaged one, which is kept in
        ``_damage``. What follows that is not received. Both lists are empty if the server has sent no checksums.
        """
        ends: list[int] = []
        checksums: list[int] = []
        announced = self._body.announced
        if not self._checked.promised:
            self._body.fill(view[start:])
            return ends, checksums
        if not announced:
            self._damage = DamagedArrival("it has no checksum")
            return ends, checksums
        receive, received = self._body.hand_over(), start
        while announced:
            size_bytes, sent = announced.popleft()
            end, checksum = start + size_bytes, 0
            at = start + PREFIX_BYTES  # the checksum begins there
            while at < end:
                goal = min(received + _PIECE_BYTES, len(view)) if received <= at else received
                while received < goal:
                    if not (count := receive(view[received:goal])):
                        raise ConnectionResetError("the connection was closed in the middle of the body")
                    received += count
                stop = min(end, received)
                checksum = crc32c(view[at:stop], checksum)
                at = stop
            if checksum != sent:
                self._damage = DamagedArrival.of(sent, checksum)
                break
            ends.append(end)
            checksums.append(checksum)
            start = end
        return ends, checksums
