"""DoGet: one or more partitions over gRPC.

The schema goes out as soon as it is known, then each frame as it was stored, or several small ones as one message
(``joined_frames``); the trailers carry the totals, of several partitions their sums. What a listed partition ends with
is in ``transfer.listed_reads``. Messages go out in turns (see ``turns``), so that they do not hold up new calls.

Checksums
    A client that asks for them gets each message in an envelope, several envelopes of small ones in one message
    (``protocol.enveloped``). They are a copy, whose room is added to that of the messages while it is sent; for several
    only if it is free.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from flight_server.concurrency import Slice, Turns, in_slices
from flight_server.datasets import Caller, Dataset, check_names_start
from flight_server.frames import SchemaMessage
from flight_server.kinds import VersionedMessage, VersionRead
from flight_server.memory import Reservation
from flight_server.protocol import (
    ALL,
    AS_STORED,
    BATCHES_HEADER,
    CHECKSUMS,
    CHECKSUMS_HEADER,
    FRAMES_TRAILER,
    ROWS_TRAILER,
    Ticket,
    wire,
)
from flight_server.protocol.checksums import crc32c, message_crc32c
from flight_server.protocol.enveloped import ENVELOPE_BYTES, Envelopes
from flight_server.reporting import ServedCall
from flight_server.tiering import Reader
from flight_server.transfer import (
    FrameBurst,
    FrameRange,
    Outgoing,
    PartitionEnds,
    PutReceiver,
    Reads,
    Trailers,
    counted,
    head_of_read,
)

from .answer_headers import send_headers
from .joined_frames import GATHERING, MOST_BYTES, JoinedFrames, Joiner, hand_over, small_run

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types

MANY_PARTITIONS = 1000
FRAME_COST_BYTES = 8 << 10
"""Of a turn: about what one of several frames in a message costs, in bytes copied."""


@dataclass(frozen=True, slots=True)
class _Out:
    """Where the messages of one read go, and in which form."""

    context: Context
    envelopes: Envelopes | None
    joiner: Joiner | None = None

    @property
    def gathers(self) -> bool:
        """Whether one message may have several small frames."""
        return self.joiner is not None or self.envelopes is not None


class GrpcGet:
    """Serves DoGet."""

    def __init__(self, puts: PutReceiver, reads: Reads, *, joins: bool) -> None:
        self._joined = JoinedFrames(reads.counters, reads.budget.sends) if joins else None
        self._check_open = puts.catalogue.check_open
        self._admission = puts.admission
        self._kinds = puts.kinds
        self._reads = reads
        self._turns = Turns()

    async def serve(self, ticket_message: bytes, context: Context, caller: Caller, call: ServedCall) -> None:
        """Send the frames that the ticket names. Raises FlightShuffleError: see :meth:`Reads.read`; the client has got
        only a part, and no totals.
        """
        self._check_open()
        async with counted(self._admission, "DoGet", ticket_message, context.peer()):
            ticket, room = self._parsed(ticket_message)
        call.dataset, call.partition = ticket.dataset, ticket.partition
        dataset, index = caller.resolve(ticket)
        call.dataset, call.partition = dataset.name, index
        dataset.touch()
        read = self._kinds[dataset.kind].read(dataset, ticket.versions, ticket.until)
        reader = Reader(dataset.name, index, context.peer(), name=ticket.reader)
        call.reads(reader.pace, dataset)
        if read is not None:
            with self._reads.delivery.of_connection(reader):
                await self._serve_versions(dataset, read, reader, ticket_message, context)
            return
        envelopes = await _begin(dataset, ticket_message, context)
        del ticket_message
        schema = await self._reads.schema_of(dataset, reader)
        await _send_schema(schema.header, envelopes, context)
        out = _Out(context, envelopes, self._joiner(ticket, dataset, schema, context, envelopes))
        with self._joined.reading(dataset) if self._joined and out.joiner else nullcontext():
            await self._send_partitions(dataset, ticket, reader, out)
        del room

    def _parsed(self, ticket_message: bytes) -> tuple[Ticket, Reservation | None]:
        """The ticket, and room for the partitions that it lists, if they are many: a read keeps them to its end."""
        ticket = Ticket.parse(ticket_message)
        if not isinstance(ticket.partitions, tuple) or len(ticket.partitions) < MANY_PARTITIONS:
            return ticket, None
        compact: Any = array("I", ticket.partitions)
        room = self._reads.budget.metadata.reserve(
            len(compact) * compact.itemsize, "the partitions that a ticket lists", dataset=ticket.dataset
        )
        return replace(ticket, partitions=compact), room

    def _joiner(
        self,
        ticket: Ticket,
        dataset: Dataset,
        schema: SchemaMessage,
        context: Context,
        envelopes: Envelopes | None,
    ) -> Joiner | None:
        """None for a reader that wants the frames as they are stored."""
        ranged = ticket.until is not None or ticket.partitions not in (None, ALL)
        counts = ticket.counts or ranged or ticket.reader is not None
        as_stored = (BATCHES_HEADER, AS_STORED) in context.invocation_metadata()
        if self._joined is None or envelopes is not None or counts or as_stored:
            return None
        checked = dataset.on_disk is None or not dataset.on_disk.recovered
        return self._joined.joiner(dataset, schema, checked=checked)

    def _bursts(
        self, dataset: Dataset, reader: Reader, frame_range: FrameRange, out: _Out
    ) -> AsyncGenerator[FrameBurst, None]:
        if not out.gathers:
            return self._reads.read(dataset, reader, frame_range)
        burst_bytes = min(MOST_BYTES, self._reads.budget.max_message_bytes // 4)
        return self._reads.read(dataset, reader, frame_range, burst_bytes=burst_bytes, gathering=GATHERING)

    async def _send_partitions(self, dataset: Dataset, ticket: Ticket, reader: Reader, out: _Out) -> None:
        assert dataset.schema is not None
        listed = ticket.partitions
        indices = [reader.partition] if listed is None else dataset.listed(listed)
        ends = None if listed in (None, ALL) else PartitionEnds(dataset, dataset.schema)
        trailers = Trailers(of_one=listed is None)
        present = Slice()  # of all partitions: many may have a few small frames
        for index in indices:
            each = replace(reader, partition=index)
            if not dataset.lacks_frames(index):
                frame_range = FrameRange(ticket.from_ if index == indices[0] else 0, ticket.until)
                async with aclosing(self._bursts(dataset, each, frame_range, out)) as bursts:
                    async for burst in bursts:
                        await self._send(burst, each, out)
                        await present.end()
                trailers.add(frame_range, dataset.partition(index))
            for message in [] if ends is None else await ends.of(index):
                await self._send_made(message, each, out)
            await present.end()
        check_names_start(dataset, ticket.start)  # it may have been sealed meanwhile
        out.context.set_trailing_metadata(tuple(trailers.fields.items()))
        async for index in in_slices(indices):
            if not dataset.lacks_frames(index):
                frame_range = FrameRange(ticket.from_ if index == indices[0] else 0, ticket.until)
                frame_range.ended(dataset, replace(reader, partition=index))

    async def _send_made(
        self,
        message: VersionedMessage,
        reader: Reader,
        out: _Out,
        room: Reservation | None = None,
    ) -> None:
        await self._turns.take(message.size_bytes)
        data = message.flight_data()
        if out.envelopes is not None:
            data = out.envelopes.seal((data, message.crc32c, crc32c(message.metadata)))
        await self._reads.delivery.deliver(out.context.write, data, reader, room=room)

    async def _serve_versions(
        self, dataset: Dataset, read: VersionRead, reader: Reader, ticket_message: bytes, context: Context
    ) -> None:
        read.check()
        self._reads.counters.gets += 1
        envelopes = await _begin(dataset, ticket_message, context)
        await _send_schema(read.schema_header(), envelopes, context)
        out = _Out(context, envelopes)
        rows = frames = 0
        async with aclosing(read.bursts(reader)) as bursts:
            async for burst in bursts:
                for message in burst:
                    await self._send_made(message, reader, out, burst.room)
                    self._reads.counters.frames_sent(1, message.size_bytes)
                    reader.pace.count(message.rows, message.size_bytes)
                    rows, frames = rows + message.rows, frames + 1
                dataset.touch()
                del burst
        context.set_trailing_metadata(((ROWS_TRAILER, str(rows)), (FRAMES_TRAILER, str(frames))))

    async def _send(self, burst: FrameBurst, reader: Reader, out: _Out) -> None:
        # A function of its own, so that no variable holds a frame while its reader waits for the next.
        at = 0
        while at < len(burst):
            run = small_run(burst, at) if out.gathers else burst[at : at + 1]
            size_bytes = sum(outgoing.message.size_bytes for outgoing in run)
            await self._turns.take(max(size_bytes, len(run) * FRAME_COST_BYTES))
            at += await self._send_run(run, reader, out)

    async def _send_run(self, run: Sequence[Outgoing], reader: Reader, out: _Out) -> int:
        """Send the first message of the run, or more of them as one; how many."""
        joined = None if out.joiner is None else out.joiner.take(run)
        room = run[0].room
        assert room is not None  # only an outlet of the bulk lane parks a message
        if joined is not None:
            await self._reads.delivery.deliver(
                out.context.write, joined.data, reader, room=room, shared=joined.room
            )
            return joined.frames
        if out.envelopes is None:
            await self._reads.delivery.deliver(out.context.write, run[0].data, reader, room=room)
            return 1
        copied_bytes = sum(ENVELOPE_BYTES + outgoing.message.size_bytes for outgoing in run)
        if len(run) > 1 and not room.try_grow(copied_bytes):
            run = run[:1]
        if len(run) == 1:
            copied_bytes = ENVELOPE_BYTES + run[0].message.size_bytes
            room.grow(copied_bytes)
        data = out.envelopes.seal(
            *((each.data, each.message.crc32c, each.message.metadata_crc32c) for each in run)
        )
        room = hand_over(run)
        await self._reads.delivery.deliver(out.context.write, data, reader, room=room)
        room.shrink(copied_bytes)
        return len(run)


async def _begin(dataset: Dataset, ticket_message: bytes, context: Context) -> Envelopes | None:
    """Send the headers; the envelopes if the client has asked for checksums. ``ticket_message`` is its ticket."""
    checked = (CHECKSUMS_HEADER, CHECKSUMS) in context.invocation_metadata()
    extra = [(CHECKSUMS_HEADER, CHECKSUMS)] if checked else []
    await send_headers(context, (*head_of_read(dataset), *extra))
    return Envelopes(ticket_message) if checked else None


async def _send_schema(header: bytes, envelopes: Envelopes | None, context: Context) -> None:
    message = wire.flight_data(header)
    await context.write(message)
    if envelopes is not None:
        await context.write(envelopes.seal((message, message_crc32c(header), 0)))
