"""Encoder: record batches to the FlightData messages that a client of ours would send.

Guarantee: the messages, after the schema's, decode to the rows that went in, in order; each holds at most
``max_message_bytes``; the same batches give the same bytes.

Sizes
    The encoder cuts batches larger than ``TARGET_BYTES`` and joins smaller ones, so a file's layout does not matter.
    The messages stay below the 4 MiB that gRPC clients take by default, except for a larger row or dictionary, and a
    batch of list views or dense unions (``protocol.cutting``). One larger than ``max_message_bytes`` is an error.

Dictionaries
    One IPC stream writer for all batches sends a dictionary again only when it has changed, as its replacement.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

import pyarrow as pa

from flight_server.protocol import InvalidRequest, cut, ipc_framing, wire
from flight_server.protocol.checksums import message_crc32c

from .builder import Checked
from .decoder import Accepted

TARGET_BYTES = 2 << 20
_OVERHEAD_BYTES = 4096  # of a message beyond its batch; FlightData's own framing is some 20 bytes


class Encoder:
    """The encoder of one partition."""

    def __init__(self, schema: pa.Schema, *, max_message_bytes: int) -> None:
        self._schema = schema
        self._limit_bytes = max_message_bytes - _OVERHEAD_BYTES
        self._target_bytes = min(TARGET_BYTES, self._limit_bytes)
        self._written = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._written, schema)

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Checked]:
        """The messages of all batches. Blocks while ``batches`` blocks. Raises InvalidRequest: see "Sizes"."""
        for batch in self._coalesce(batches):
            for piece in cut_to_messages(batch, self._target_bytes, self._limit_bytes):
                yield from self._messages(piece)

    def _coalesce(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches; neighbours that together stay within the target are joined."""
        waiting: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            more_bytes = pa.ipc.get_record_batch_size(batch)
            if waiting and size_bytes + more_bytes > self._target_bytes:
                yield _concat(waiting)
                waiting, size_bytes = [], 0
            waiting.append(batch)
            size_bytes += more_bytes
            del batch
        if waiting:
            yield _concat(waiting)

    def _messages(self, batch: pa.RecordBatch) -> Iterator[Checked]:
        self._writer.write_batch(batch)
        reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(self._written.getvalue()))
        self._written.seek(0)
        self._written.truncate()
        for part in reader:
            header, body = memoryview(part.metadata), memoryview(part.body)
            read = ipc_framing.IpcHeader(header)
            kind = read.kind
            if kind is ipc_framing.MessageKind.SCHEMA:
                continue  # readers get the dataset's
            message = wire.flight_data(header, body=body)
            checksum = message_crc32c(header, body)
            accepted = Accepted(kind, b"", rows=batch.num_rows, crc32c=checksum)
            if kind is ipc_framing.MessageKind.DICTIONARY:
                self._check_dictionary(len(message))
                number, delta = read.dictionary_id
                accepted = Accepted(kind, b"", crc32c=checksum, dictionary_id=number, dictionary_delta=delta)
            yield Checked(message, accepted)

    def _check_dictionary(self, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            raise InvalidRequest(
                f"a dictionary has {size_bytes} bytes, more than a message may have ({self._limit_bytes}): raise "
                "--max-message, or give a schema with plain values",
                limit_bytes=self._limit_bytes,
            )


def cut_to_messages(batch: pa.RecordBatch, target_bytes: int, limit_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows in slices of at most ``target_bytes``, as far as they can be cut (``protocol.cutting``). Raises
    InvalidRequest: a slice has more than ``limit_bytes``.
    """
    size_bytes, rows = pa.ipc.get_record_batch_size(batch), batch.num_rows
    pieces = -(-size_bytes // target_bytes)
    # Rounded up: the rows that a division leaves would be a slice of their own.
    slices = cut(batch, -(-rows // pieces), pa.ipc.get_record_batch_size, limit_bytes=limit_bytes)
    if len(slices) > 1:
        for each in slices:
            yield from cut_to_messages(each, target_bytes, limit_bytes)  # again, because rows differ in size
        return
    if size_bytes > limit_bytes:
        what = "a row" if rows == 1 else f"a batch of {rows} rows that share their buffers"
        raise InvalidRequest(
            f"{what} has {size_bytes} bytes, more than a message may have ({limit_bytes}): raise --max-message, or "
            "leave its largest column out",
            limit_bytes=limit_bytes,
        )
    yield batch


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
