"""An HTTP body as runs of record batches: whole chunks at once where that is right, else one message.

Guarantee: the batches are those of the Arrow stream in the body, each once and in order, whatever the
chunks. Where the stream ends, or is broken, is found by Arrow's stream decoder in both ways.

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

Copies
    One, by the kernel, into the buffers that the batches refer to. Their values are aligned to 8 bytes,
    and to 64 for a message alone. Batches of one chunk share its buffer: whoever keeps one of them
    keeps the chunk, which is why they are accounted for together.
"""

from __future__ import annotations

import pyarrow as pa

from spark_client.batch_sizes import has_dictionary
from spark_client.lanes.http import Body
from spark_client.queues import Run

MAX_CHUNK_BYTES = 4 << 20
MIN_SCHEMAS = 8
_MAX_SCHEMA_BYTES = 64 << 10
_ALIGNMENT_BYTES = 8


class RunReader:
    """The decoder of one body. Making it waits for the schema.

    Raises:
        OSError: the body was cut.
        pa.ArrowException: it does not begin with a schema message.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        first = b""
        if 0 < (size_bytes := body.next_chunk_bytes()) <= _MAX_SCHEMA_BYTES:
            first = body.read(size_bytes)
            body.give_back(memoryview(first))
        self._messages = pa.ipc.open_stream(pa.PythonFile(body, mode="r"))
        self.schema: pa.Schema = self._messages.schema
        # In the server's own bytes, because byte order and features are in it that pyarrow's Schema lacks.
        alone = body.between_chunks and len(first) % _ALIGNMENT_BYTES == 0
        self._schema_message = first if alone else b""
        if any(has_dictionary(field.type) for field in self.schema):
            self._schema_message = b""

    def read_run(self) -> Run | None:
        """Wait for the next message; its batch and those of its chunk. None at Arrow's end of stream.

        Raises:
            OSError: the body was cut.
            pa.ArrowException: what came is no record batch of this schema.
        """
        if self._schema_message:
            size_bytes = self._body.next_chunk_bytes()
            if MIN_SCHEMAS * len(self._schema_message) <= size_bytes <= MAX_CHUNK_BYTES:
                run = self._read_chunk(size_bytes)
                if run.batches:
                    return run
        try:
            return Run([self._messages.read_next_batch()])
        except StopIteration:
            return None

    def _read_chunk(self, size_bytes: int) -> Run:
        """The whole messages of the chunk that begins; the rest of it is given back."""
        start = len(self._schema_message)
        buffer = pa.allocate_buffer(start + size_bytes)
        view = memoryview(buffer).cast("B")
        view[:start] = self._schema_message
        self._body.fill(view[start:])
        source = pa.BufferReader(buffer)
        batches: list[pa.RecordBatch] = []
        done = start
        try:
            messages = pa.ipc.open_stream(source)
            while True:
                batches.append(messages.read_next_batch())
                done = source.tell()
        except (StopIteration, OSError, pa.ArrowException):
            if done < buffer.size:
                self._body.give_back(view[done:])
        return Run(batches, buffer.size)
