"""What a read of several partitions says after each of them.

The partitions follow one another in the order of the request. After the frames of each comes a batch without rows, by
which a reader knows that it has the whole partition, and that the next frame is the first of the next one:

    custom_metadata  {"ended": text}; the gRPC lane has the text as app_metadata
    text             JSON: {"partition", "rows", "frames", "crc32c"}, the totals of the whole partition

So a reader that was cut off goes on at the partition and frame where it was. To other clients it is an empty batch.
Dictionaries come before it, empty, because a read that goes on behind the last frame was sent none; the next partition
brings its own.
"""

from __future__ import annotations

import asyncio
import io

import pyarrow as pa

from flight_server.datasets import Dataset
from flight_server.frames import COSTLY_HEADER_BYTES, SchemaMessage
from flight_server.kinds import VersionedMessage
from flight_server.protocol import (
    MAX_PARTITIONS,
    PARTITION_ENDED,
    MessageKind,
    PartitionEnd,
    ipc_framing,
    wire,
)
from flight_server.protocol.checksums import message_crc32c

_ANY = PartitionEnd(MAX_PARTITIONS - 1).encode()


class PartitionEnds:
    """Makes these messages for one read; they are encoded once."""

    def __init__(self, dataset: Dataset, schema: SchemaMessage) -> None:
        self._dataset = dataset
        self._schema = schema
        self._encoded: list[tuple[bytes, bytes]] | None = None

    async def of(self, index: int) -> list[VersionedMessage]:
        """The messages after a partition that was read to its end."""
        if self._encoded is None:
            costly = len(self._schema.header) > COSTLY_HEADER_BYTES
            self._encoded = (
                await asyncio.to_thread(_encoded, self._schema) if costly else _encoded(self._schema)
            )
        end = PartitionEnd(index)
        if not self._dataset.lacks_frames(index):
            totals = self._dataset.partition(index).totals
            end = PartitionEnd(index, totals.rows, totals.frames, totals.crc32c)
        return [_message(header, body, end.encode()) for header, body in self._encoded]


def _message(header: bytes, body: bytes, text: bytes) -> VersionedMessage:
    names_it = _ANY in header
    head = header.replace(_ANY, text)
    parts = wire.FlightData(header=memoryview(head), body=memoryview(body))
    return VersionedMessage(parts, message_crc32c(head, body), 0, text if names_it else b"")


def _encoded(message: SchemaMessage) -> list[tuple[bytes, bytes]]:
    """Header and body of each message, with the text ``_ANY`` in the place of the partition's."""
    schema = message.schema
    columns = [
        pa.nulls(0, field.type) for field in schema
    ]  # also of unions, of which there are no empty tables
    written = io.BytesIO()
    with pa.ipc.new_stream(written, schema) as writer:
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        writer.write_batch(batch, custom_metadata={PARTITION_ENDED: _ANY})
    kinds = {MessageKind.RECORD_BATCH}
    if message.canonical():  # else the dictionaries have other ids here
        kinds.add(MessageKind.DICTIONARY)
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(written.getvalue()))
    pairs = [(bytes(each.metadata), bytes(each.body or b"")) for each in messages]
    return [each for each in pairs if ipc_framing.IpcHeader(memoryview(each[0])).kind in kinds]
