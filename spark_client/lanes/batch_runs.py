"""An HTTP body as runs of record batches: whole chunks at once where that is right, else one message.

Guarantee: the batches are those of the Arrow stream in the body, each once and in order, whatever the
chunks. Where the stream ends, or is broken, is found by Arrow's stream decoder in both ways. Where the server
has said checksums, nothing is decoded and no batch is returned whose message has another one; a batch before a
damaged message is returned before the error.

Whole chunks
    Our server sends each run of messages as one chunk, so that nothing in it is still to be waited for.
    A chunk of ``MIN_SCHEMAS`` times the schema's size up to ``MAX_CHUNK_BYTES`` is received into one
    buffer, behind a copy of the schema message, and decoded there without a copy and without a call
    back into Python for each message: 1.4 µs a batch instead of 6.

    Nothing is believed of chunks: what is not a whole message (others cut where they like) goes to
    the other way with all that follows it. So does an end marker, and whatever Arrow refuses.

One message
    Arrow's decoder asks for header and body by their lengths, and the body is received straight into a
    buffer of that size. So it is for large chunks, for bodies without chunks, and always for schemas
    with dictionaries, which the decoder has to remember from message to message.
    With checksums :class:`~spark_client.lanes.checked.CheckedMessages` stands between the two.

Without checksums in the chunks
    A proxy may make other chunks, and lose them. What came is then summed up all the same, so that the
    totals at the end can be compared.

Copies
    One, by the kernel, into the buffers that the batches refer to. Their values are aligned to 8 bytes,
    and to 64 for a message alone. Batches of one chunk share its buffer: whoever keeps one of them
    keeps the chunk, which is why they are accounted for together.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from flight_server.protocol.checksums import crc32c
from spark_client.arrow import has_dictionary

from .checked import PREFIX_BYTES, CheckedMessages, Damaged, check
from .http import Body
from .lane import BatchRun

MAX_CHUNK_BYTES = 4 << 20
MIN_SCHEMAS = 8
_MAX_SCHEMA_BYTES = 64 << 10
_ALIGNMENT_BYTES = 8


class RunReader:
    """The decoder of one body. Making it waits for the schema.

    Args:
        checked: sum up what comes, and compare it where the server has said checksums.

    Raises:
        OSError: the body was cut, or the schema came damaged.
        pa.ArrowException: it does not begin with a schema message.
    """

    def __init__(self, body: Body, *, checked: bool = False) -> None:
        self._body = body
        self._checked = CheckedMessages(body) if checked else None
        self._damage: Damaged | None = None
        first = b""
        if 0 < (size_bytes := body.next_chunk_bytes()) <= _MAX_SCHEMA_BYTES:
            first = body.read(size_bytes)
            body.give_back(memoryview(first))
        file = body if self._checked is None else self._checked
        self._messages = pa.ipc.open_stream(pa.PythonFile(file, mode="r"))
        self.schema: pa.Schema = self._messages.schema
        # In the server's own bytes, because byte order and features are in it that pyarrow's Schema lacks.
        alone = body.between_chunks and len(first) % _ALIGNMENT_BYTES == 0
        self._schema_message = first if alone else b""
        if any(has_dictionary(field.type) for field in self.schema):
            self._schema_message = b""

    def read_run(self) -> BatchRun | None:
        """Wait for the next message; its batch and those of its chunk. None at Arrow's end of stream.

        Raises:
            OSError: the body was cut, or a message came damaged.
            pa.ArrowException: what came is no record batch of this schema.
        """
        if self._damage is not None:
            raise self._damage
        if self._schema_message:
            size_bytes = self._body.next_chunk_bytes()
            if MIN_SCHEMAS * len(self._schema_message) <= size_bytes <= MAX_CHUNK_BYTES:
                run = self._read_chunk(size_bytes)
                if run.batches:
                    return run
                if self._damage is not None:
                    raise self._damage
        try:
            batch = self._messages.read_next_batch()
        except StopIteration:
            return None
        return BatchRun([batch], checksums=() if self._checked is None else self._checked.taken())

    def _read_chunk(self, size_bytes: int) -> BatchRun:
        """The whole messages of the chunk that begins, up to a damaged one; the rest of it is given back."""
        start = len(self._schema_message)
        buffer = pa.allocate_buffer(start + size_bytes)
        view = memoryview(buffer).cast("B")
        view[:start] = self._schema_message
        self._body.fill(view[start:])
        ends, checksums = self._said(view, start)
        if self._damage is not None and not ends:
            return BatchRun([])
        source = pa.BufferReader(buffer.slice(0, ends[-1]) if ends else buffer)
        batches: list[pa.RecordBatch] = []
        places = [start]
        try:
            messages = pa.ipc.open_stream(source)
            while True:
                batch = messages.read_next_batch()
                places.append(source.tell())
                if ends and places[-1] != ends[len(batches)]:
                    break
                batches.append(batch)
        except (StopIteration, OSError, pa.ArrowException):
            pass
        if ends:
            if len(batches) < len(ends):
                self._damage = Damaged("its length is another one")
            return BatchRun(batches, buffer.size, checksums[: len(batches)])
        if self._checked is not None:
            checksums = [crc32c(view[at + PREFIX_BYTES : end]) for at, end in pairwise(places)]
        if places[-1] < buffer.size:
            self._body.give_back(view[places[-1] :])
        return BatchRun(batches, buffer.size, checksums)

    def _said(self, view: memoryview, start: int) -> tuple[list[int], list[int]]:
        """Where the messages end that have the checksum that the server has said, and these; none if it has said
        none. The first that has another one is kept in ``_damage``.
        """
        ends: list[int] = []
        checksums: list[int] = []
        if self._checked is None or not self._checked.promised:
            return ends, checksums
        announced = self._body.announced
        if not announced:
            self._damage = Damaged("it has no checksum")
        while announced:
            said = announced.popleft()
            end = start + said[0]
            checksum = crc32c(view[start + PREFIX_BYTES : end])
            try:
                check(said, checksum)
            except Damaged as damage:
                self._damage = damage
                break
            ends.append(end)
            checksums.append(checksum)
            start = end
        return ends, checksums
