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
from collections.abc import Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from flight_server.concurrency import Slice, Turns
from flight_server.datasets import Caller, Dataset
from flight_server.kinds import VersionedMessage
from flight_server.memory import Reservation
from flight_server.protocol import (
    ALL,
    AS_STORED,
    BATCHES_HEADER,
    CHECKSUMS,
    CHECKSUMS_HEADER,
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
    PutReceiver,
    Reads,
    counted,
    head_of_read,
    send_partitions,
    send_versions,
)

from .answer_headers import send_headers
from .joined_frames import GATHERING, MOST_BYTES, JoinedFrames, Joiner, hand_over, small_run

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types

MANY_PARTITIONS = 1000
FRAME_COST_BYTES = 8 << 10
"""Of a turn: about what one of several frames in a message costs, in bytes copied."""


class GrpcGet:
    """Serves DoGet."""

    def __init__(self, puts: PutReceiver, reads: Reads, *, joins: bool) -> None:
        self._joined = JoinedFrames(reads.counters, reads.budget.sends) if joins else None
        self._puts = puts
        self._reads = reads
        self._turns = Turns()

    async def serve(self, ticket_message: bytes, context: Context, caller: Caller, call: ServedCall) -> None:
        """Send the frames that the ticket names, and the totals. Raises FlightShuffleError: see :meth:`Reads.read`."""
        self._puts.catalogue.check_open()
        async with counted(self._puts.admission, "DoGet", ticket_message, context.peer()):
            ticket, room = self._parsed(ticket_message)
        call.dataset, call.partition = ticket.dataset, ticket.partition
        dataset, index = caller.resolve(ticket)
        call.dataset, call.partition = dataset.name, index
        dataset.touch()
        read = self._puts.kinds[dataset.kind].read(dataset, ticket.versions, ticket.until)
        reader = Reader(dataset.name, index, context.peer(), name=ticket.reader)
        call.reads(reader.pace, dataset)
        if read is not None:
            read.check()
        envelopes = await _begin(dataset, ticket_message, context)
        del ticket_message
        stream = _Stream(dataset, self._reads, self._turns, context, envelopes)
        if read is not None:
            with self._reads.delivery.of_connection(reader):
                await stream.send_schema(read.schema_header())
                await send_versions(dataset, read, reader, stream, self._reads.counters)
            return
        schema = await self._reads.schema_of(dataset, reader)
        await stream.send_schema(schema.header)
        if self._joined is not None and envelopes is None and not _counts(ticket, context):
            checked = dataset.on_disk is None or not dataset.on_disk.recovered
            stream.joiner = self._joined.joiner(dataset, schema, checked=checked)
        indices = [index] if ticket.partitions is None else dataset.listed(ticket.partitions)
        with self._joined.reading(dataset) if self._joined and stream.joiner else nullcontext():
            await send_partitions(dataset, ticket, indices, reader, stream)
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


def _counts(ticket: Ticket, context: Context) -> bool:
    """Whether the reader wants the frames as they are stored."""
    ranged = ticket.until is not None or ticket.partitions not in (None, ALL)
    as_stored = (BATCHES_HEADER, AS_STORED) in context.invocation_metadata()
    return ticket.counts or ranged or ticket.reader is not None or as_stored


@dataclass(slots=True)
class _Stream:
    """Where the messages of one read go, and in which form."""

    dataset: Dataset
    reads: Reads
    turns: Turns
    context: Context
    envelopes: Envelopes | None
    joiner: Joiner | None = None

    async def send_schema(self, header: bytes) -> None:
        message = wire.flight_data(header)
        await self.context.write(message)
        if self.envelopes is not None:
            await self.context.write(self.envelopes.seal((message, message_crc32c(header), 0)))

    async def send_partition(self, reader: Reader, frame_range: FrameRange, present: Slice) -> None:
        options: dict[str, Any] = {}
        if self.gathers:
            burst_bytes = min(MOST_BYTES, self.reads.budget.max_message_bytes // 4)
            options = {"burst_bytes": burst_bytes, "gathering": GATHERING}
        async with aclosing(self.reads.read(self.dataset, reader, frame_range, **options)) as bursts:
            async for burst in bursts:
                await self._send(burst, reader)
                await present.end()

    async def send_made(
        self, messages: Sequence[VersionedMessage], reader: Reader, room: Reservation | None = None
    ) -> None:
        for message in messages:
            await self.turns.take(message.size_bytes)
            data = message.flight_data()
            if self.envelopes is not None:
                data = self.envelopes.seal((data, message.crc32c, crc32c(message.metadata)))
            await self.reads.delivery.deliver(self.context.write, data, reader, room=room)

    async def finish(self, trailers: Mapping[str, str], _: Reader) -> None:
        self.context.set_trailing_metadata(tuple(trailers.items()))

    @property
    def gathers(self) -> bool:
        """Whether one message may have several small frames."""
        return self.joiner is not None or self.envelopes is not None

    async def _send(self, burst: FrameBurst, reader: Reader) -> None:
        # A function of its own, so that no variable holds a frame while its reader waits for the next.
        at = 0
        while at < len(burst):
            run = small_run(burst, at) if self.gathers else burst[at : at + 1]
            size_bytes = sum(outgoing.message.size_bytes for outgoing in run)
            await self.turns.take(max(size_bytes, len(run) * FRAME_COST_BYTES))
            at += await self._send_run(run, reader)

    async def _send_run(self, run: Sequence[Outgoing], reader: Reader) -> int:
        """Send the first message of the run, or more of them as one; how many."""
        deliver, write = self.reads.delivery.deliver, self.context.write
        joined = None if self.joiner is None else self.joiner.take(run)
        room = run[0].room
        assert room is not None  # only an outlet of the bulk lane parks a message
        if joined is not None:
            await deliver(write, joined.data, reader, room=room, shared=joined.room)
            return joined.frames
        if self.envelopes is None:
            await deliver(write, run[0].data, reader, room=room)
            return 1
        copied_bytes = sum(ENVELOPE_BYTES + outgoing.message.size_bytes for outgoing in run)
        if len(run) > 1 and not room.try_grow(copied_bytes):
            run = run[:1]
        if len(run) == 1:
            copied_bytes = ENVELOPE_BYTES + run[0].message.size_bytes
            room.grow(copied_bytes)
        data = self.envelopes.seal(
            *((each.data, each.message.crc32c, each.message.metadata_crc32c) for each in run)
        )
        room = hand_over(run)
        await deliver(write, data, reader, room=room)
        room.shrink(copied_bytes)
        return len(run)


async def _begin(dataset: Dataset, ticket_message: bytes, context: Context) -> Envelopes | None:
    """Send the headers; the envelopes if the client has asked for checksums. ``ticket_message`` is its ticket."""
    checked = (CHECKSUMS_HEADER, CHECKSUMS) in context.invocation_metadata()
    extra = [(CHECKSUMS_HEADER, CHECKSUMS)] if checked else []
    await send_headers(context, (*head_of_read(dataset), *extra))
    return Envelopes(ticket_message) if checked else None
