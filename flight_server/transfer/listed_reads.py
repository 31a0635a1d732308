"""Reads of both lanes, from the first frame to the totals, and what one of several partitions says after each of them.

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
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from flight_server.concurrency import Slice, in_slices
from flight_server.datasets import Counters, Dataset, check_names_start
from flight_server.frames import COSTLY_HEADER_BYTES, SchemaMessage
from flight_server.kinds import VersionedMessage, VersionRead
from flight_server.memory import Reservation
from flight_server.protocol import (
    ALL,
    FRAMES_TRAILER,
    MAX_PARTITIONS,
    PARTITION_ENDED,
    ROWS_TRAILER,
    MessageKind,
    PartitionEnd,
    Ticket,
    ipc_framing,
    wire,
)
from flight_server.protocol.checksums import message_crc32c
from flight_server.tiering import Reader

from .frame_ranges import FrameRange, Trailers


class LaneStream(Protocol):
    """A lane's side of one read."""

    async def send_partition(self, reader: Reader, frame_range: FrameRange, present: Slice) -> None:
        """Send frames of the reader's partition; ``present`` ends after each burst."""

    async def send_made(
        self, messages: Sequence[VersionedMessage], reader: Reader, room: Reservation | None = None
    ) -> None:
        """Send messages that are made for this reader."""

    async def finish(self, trailers: Mapping[str, str], reader: Reader) -> None:
        """End the stream with the totals."""


async def send_partitions(
    dataset: Dataset, ticket: Ticket, indices: Sequence[int], reader: Reader, stream: LaneStream
) -> None:
    """Send the partitions of a ticket, which are ``indices``, and their totals. Raises FlightShuffleError."""
    assert dataset.schema is not None
    listed = ticket.partitions
    ends = None if listed in (None, ALL) else PartitionEnds(dataset, dataset.schema)
    trailers = Trailers(of_one=listed is None)
    present = Slice()  # of all partitions: many may have a few small frames
    for index in indices:
        each = replace(reader, partition=index)
        if not dataset.lacks_frames(index):
            frame_range = FrameRange.of(ticket, first=index == indices[0])
            await stream.send_partition(each, frame_range, present)
            # Not later: a source's partition may be released as soon as it has no reader.
            trailers.add(frame_range, dataset.partition(index))
        if ends is not None:
            await stream.send_made(await ends.of(index), each)
        await present.end()
    check_names_start(dataset, ticket.start)  # it may have been sealed meanwhile
    await stream.finish(trailers.fields, reader)
    async for index in in_slices(indices):
        if not dataset.lacks_frames(index):
            frame_range = FrameRange.of(ticket, first=index == indices[0])
            frame_range.ended(dataset, replace(reader, partition=index))


async def send_versions(
    dataset: Dataset, read: VersionRead, reader: Reader, stream: LaneStream, counters: Counters
) -> None:
    """Send the messages of a read of versions, and their totals. Raises as :meth:`VersionRead.bursts`."""
    counters.gets += 1
    rows = frames = 0
    async with aclosing(read.bursts(reader)) as bursts:
        async for burst in bursts:
            await stream.send_made(burst, reader, burst.room)
            for message in burst:
                counters.frames_sent(1, message.size_bytes)
                reader.pace.count(message.rows, message.size_bytes)
                rows, frames = rows + message.rows, frames + 1
            dataset.touch()
            del burst
    await stream.finish({ROWS_TRAILER: str(rows), FRAMES_TRAILER: str(frames)}, reader)


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
    # Also of unions, of which there are no empty tables.
    columns = [pa.nulls(0, field.type) for field in schema]
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
