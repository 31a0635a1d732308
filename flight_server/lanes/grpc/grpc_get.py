"""DoGet: one or more partitions over gRPC.

The schema goes out as soon as it is known, then each frame as it was stored; the trailers carry the totals, of several
partitions their sums. What a listed partition ends with is in ``transfer.listed_reads``. Frames go
out in turns (see ``turns``), so that they do not hold up new calls.

Checksums
    A client that asks for them gets each message in an envelope (``protocol.enveloped``). The envelope is a copy, whose
    room is added to that of the message while it is sent.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Any

from flight_server.concurrency import Slice, Turns, in_slices
from flight_server.datasets import Caller, Catalogue, Dataset, lacks_frames, listed
from flight_server.kinds import Kinds, VersionedMessage, VersionRead
from flight_server.memory import Reservation
from flight_server.protocol import (
    ALL,
    CHECKSUMS,
    CHECKSUMS_HEADER,
    FRAMES_TRAILER,
    ROWS_TRAILER,
    Ticket,
    wire,
)
from flight_server.protocol.checksums import crc32c, message_crc32c
from flight_server.protocol.enveloped import Envelopes
from flight_server.reporting import ServedCall
from flight_server.tiering import Reader
from flight_server.transfer import FrameBurst, FrameRange, PartitionEnds, Reads, head_of_read

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types


class GrpcGet:
    """Serves DoGet."""

    def __init__(self, catalogue: Catalogue, reads: Reads, kinds: Kinds) -> None:
        self._check_open = catalogue.check_open
        self._kinds = kinds
        self._reads = reads
        self._turns = Turns()

    async def serve(self, request: bytes, context: Context, caller: Caller, call: ServedCall) -> None:
        """Send the frames that the ticket names. Raises FlightShuffleError: see :meth:`Reads.read`; the client has got
        only a part, and no totals.
        """
        self._check_open()
        asked = wire.bytes_field(request, 1, "Ticket")
        ticket = Ticket.parse(asked)
        call.dataset, call.partition = ticket.dataset, ticket.partition
        dataset, index = caller.resolve(ticket)
        call.dataset, call.partition = dataset.name, index
        dataset.touch()
        read = self._kinds[dataset.kind].read(dataset, ticket.versions, ticket.until)
        reader = Reader(dataset.name, index, context.peer(), name=ticket.reader)
        call.reads(reader.pace, dataset)
        if read is not None:
            with self._reads.delivery.of_connection(reader):
                await self._serve_versions(dataset, read, reader, asked, context)
            return
        envelopes = await _begin(dataset, asked, context)
        schema = await self._reads.schema_of(dataset, reader)
        await _send_schema(schema.header, envelopes, context)
        if ticket.partitions is not None:
            await self._serve_several(dataset, ticket, reader, envelopes, context)
            return
        wanted = FrameRange(ticket.from_, ticket.until)
        async with aclosing(self._reads.read(dataset, reader, wanted)) as bursts:
            async for burst in bursts:
                await self._send(burst, reader, context, envelopes)
        context.set_trailing_metadata(tuple(wanted.trailers(dataset.partition(index))))
        wanted.ended(dataset, reader)

    async def _serve_several(
        self,
        dataset: Dataset,
        ticket: Ticket,
        reader: Reader,
        envelopes: Envelopes | None,
        context: Context,
    ) -> None:
        assert ticket.partitions is not None
        assert dataset.schema is not None
        ends = None if ticket.partitions == ALL else PartitionEnds(dataset, dataset.schema)
        indices, first = listed(dataset, ticket.partitions), ticket.from_
        rows = frames = 0
        present = Slice()  # of all partitions: many may have a few small frames
        for index in indices:
            each = replace(reader, partition=index)
            if not lacks_frames(dataset, index):
                wanted = FrameRange(first if index == indices[0] else 0)
                async with aclosing(self._reads.read(dataset, each, wanted)) as bursts:
                    async for burst in bursts:
                        await self._send(burst, each, context, envelopes)
                        await present.end()
                totals = dataset.partition(index).totals
                rows, frames = rows + totals.rows, frames + totals.frames
            for message in [] if ends is None else await ends.of(index):
                await self._send_made(message, each, context, envelopes)
            await present.end()
        context.set_trailing_metadata(((ROWS_TRAILER, str(rows)), (FRAMES_TRAILER, str(frames))))
        async for index in in_slices(indices):
            if not lacks_frames(dataset, index):
                wanted = FrameRange(first if index == indices[0] else 0)
                wanted.ended(dataset, replace(reader, partition=index))

    async def _send_made(
        self,
        message: VersionedMessage,
        reader: Reader,
        context: Context,
        envelopes: Envelopes | None,
        room: Reservation | None = None,
    ) -> None:
        await self._turns.take(message.size_bytes)
        data = message.flight_data()
        if envelopes is not None:
            data = envelopes.seal(data, message.crc32c, crc32c(message.metadata))
        await self._reads.delivery.deliver(context.write, data, reader, room=room)

    async def _serve_versions(
        self, dataset: Dataset, read: VersionRead, reader: Reader, asked: bytes, context: Context
    ) -> None:
        read.check()
        self._reads.counters.gets += 1
        envelopes = await _begin(dataset, asked, context)
        await _send_schema(read.schema_header(), envelopes, context)
        rows = frames = 0
        async with aclosing(read.bursts(reader)) as bursts:
            async for burst in bursts:
                for message in burst:
                    await self._send_made(message, reader, context, envelopes, burst.room)
                    self._reads.counters.message_out(message.size_bytes)
                    reader.pace.count(message.rows, message.size_bytes)
                    rows, frames = rows + message.rows, frames + 1
                dataset.touch()
                del burst
        context.set_trailing_metadata(((ROWS_TRAILER, str(rows)), (FRAMES_TRAILER, str(frames))))

    async def _send(
        self, burst: FrameBurst, reader: Reader, context: Context, envelopes: Envelopes | None
    ) -> None:
        # A function of its own, so that no variable holds a frame while its reader waits for the next.
        for outgoing in burst:
            message, data, room = outgoing.message, outgoing.data, outgoing.room
            await self._turns.take(message.size_bytes)
            copied_bytes = 0
            assert room is not None  # only an outlet of the bulk lane parks a message
            if envelopes is not None:
                data = envelopes.seal(data, message.crc32c, message.metadata_crc32c)
                copied_bytes = len(data)
                room.grow(copied_bytes)
            await self._reads.delivery.deliver(context.write, data, reader, room=room)
            del data
            room.shrink(copied_bytes)


async def _begin(dataset: Dataset, asked: bytes, context: Context) -> Envelopes | None:
    """Send the headers; the envelopes if the client has asked for checksums. ``asked`` is its ticket."""
    checked = (CHECKSUMS_HEADER, CHECKSUMS) in context.invocation_metadata()
    said = [(CHECKSUMS_HEADER, CHECKSUMS)] if checked else []
    await context.send_initial_metadata((*head_of_read(dataset), *said))
    return Envelopes(asked) if checked else None


async def _send_schema(header: bytes, envelopes: Envelopes | None, context: Context) -> None:
    message = wire.flight_data(header)
    await context.write(message)
    if envelopes is not None:
        await context.write(envelopes.seal(message, message_crc32c(header), 0))
