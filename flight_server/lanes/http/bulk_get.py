"""The bulk lane for reading: a partition, several, or a whole dataset, as one Arrow IPC stream over HTTP.

Guarantee: the chunked terminator follows only the end of a sealed partition (or of all of them). If the handler ends
otherwise (aiohttp cancels it when the connection is lost), the connection is cut, so no client takes a part for the
whole. A Content-Length is never sent: several HTTP clients hand out a short body without an error.

    chunk   schema message, as soon as it is known
    chunk   a burst of messages: dictionaries that this reader lacks, record batches   (repeated)
    chunk   end-of-stream marker, and in the same write:
    0       trailers: rows, frames, and of one partition the checksum and which frames (``transfer.frame_ranges``)

Each of several partitions that the request lists ends as ``transfer.listed_reads`` says, in a chunk of its own.

Checksums
    A client that asks with ``x-flight-shuffle-checksums: crc32c`` gets that header back, and with each chunk of
    messages, also the schema's, an extension with each message's bytes in the chunk and CRC-32C (``checksums``), in
    hexadecimal: ``;crc32c=1a0-aabbccdd.2c8-11223344``. The sizes add up to the chunk, so a client finds damage before
    it decodes. Clients limit the length of that line, so such a chunk has at most ``CHECKED_MESSAGES`` messages. Other
    clients, some of which limit all extensions of a body together, get none.

Memory
    The room for a burst is held until the kernel has all of it. So a slow reader holds at most one burst,
    ``BURST_BYTES`` or one larger frame, all counted; one that takes nothing holds none (``outlet``). Over TLS it
    keeps its burst, and one burst that the TLS layer has encrypted is not counted.
"""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from flight_server.concurrency import Slice, in_slices
from flight_server.datasets import Dataset, PartitionState, check_names_start
from flight_server.kinds import VersionRead
from flight_server.memory import Pace
from flight_server.protocol import (
    ALL,
    CHECKSUMS,
    CHECKSUMS_HEADER,
    FRAMES_TRAILER,
    PARTITION_HEADER,
    ROWS_TRAILER,
    InvalidRequest,
    Ticket,
    ipc_framing,
    wire,
)
from flight_server.protocol.checksums import message_crc32c
from flight_server.reporting import ServedCall
from flight_server.tiering import Reader
from flight_server.transfer import FrameRange, PartitionEnds, Reads, Trailers, head_of_read

from .chunks import FramedMessage, Part, chunk, chunks_of
from .outlet import Outlet, messages_of

ARROW_STREAM = "application/vnd.apache.arrow.stream"
SEALED_HEADER = "x-flight-shuffle-sealed"

BURST_BYTES = (4 << 20) - (16 << 10)
"""Framed it has at most 4 MiB, which ``spark_client`` receives in one buffer and decodes at once. It costs both sides
about as much as the bytes of a message of 256 KiB.
"""
SECURE_BURST_BYTES = 1 << 20
"""Over TLS, where a reader that takes nothing keeps its burst."""


class ArrowStream(web.StreamResponse):
    """An answer of the bulk lane. ``Delivery.deliver`` awaits ``write`` and ``finish``.

    aiohttp writes the head. The body goes to the transport: aiohttp has neither trailers nor writes of several buffers.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self.content_type = ARROW_STREAM
        self._transport: Transport | None = None
        self._writer: AbstractStreamWriter | None = None
        self._whole = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the head, once.

        Raises:
            InvalidRequest: the request is older than HTTP/1.1.
            ConnectionError: the client has left.
        """
        if self._writer is None:
            if request.version < (1, 1):
                raise InvalidRequest("the bulk lane needs HTTP/1.1: without chunks a cut could not be seen")
            self._transport = request.transport
            if self._transport is None:
                raise ConnectionResetError("the client has left")
            # Not 0 with TLS: uvloop's transport then pauses at "high or more", and would never resume.
            self._transport.set_write_buffer_limits(high=int(request.secure), low=0)
            self._writer = await super().prepare(request)
        return self._writer

    async def write(self, chunks: list[Part]) -> None:  # type: ignore[override] # several buffers at once
        """Send whole chunks; returns when the kernel has taken them. Raises ConnectionError: the client has left."""
        assert self._transport is not None
        assert self._writer is not None
        if self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        self._transport.writelines(chunks)
        await self._writer.drain()

    async def finish(self, trailers: Mapping[str, str]) -> None:
        """Send the end-of-stream marker, the terminator and the totals. Raises ConnectionError: the client has left."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in trailers.items())
        await self.write([*chunk([ipc_framing.END_OF_STREAM]), f"0\r\n{lines}\r\n".encode("ascii")])
        self._whole = True

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing, when aiohttp calls this at the end: ``finish`` sends the terminator."""

    def cut_unless_whole(self) -> None:
        if not self._whole and self._transport is not None:
            self.force_close()
            self._transport.abort()

    def outlet(self, parked: Callable[[Awaitable[None]], Awaitable[None]]) -> Outlet | None:
        """A new outlet into the connection's socket; None over TLS."""
        assert self._transport is not None
        assert self._writer is not None
        if self._transport.get_extra_info("ssl_object") is not None:
            return None
        return Outlet(self._transport, self._writer.drain, parked)


@dataclass(frozen=True)
class BulkRead:
    """One request to read: one partition, several, or all of the dataset's, one after the other."""

    reads: Reads
    dataset: Dataset
    ticket: Ticket
    peer: str

    @property
    def _indices(self) -> Sequence[int]:
        """The partitions of the moment of the call."""
        if self.ticket.partition is not None:
            return [self.ticket.partition]
        return self.dataset.listed(self.ticket.partitions or ALL)

    def check(self) -> None:
        """Raise the errors that :meth:`Reads.read` would raise at once, while an HTTP status can still be sent."""
        if self.ticket.partition is None and self.dataset.failure is not None:
            for partition in self.dataset.partitions():
                partition.check()
        first = self.dataset.partition(self._indices[0])
        first.check()
        first.subscribe(self.ticket.from_).close()
        if first.state is PartitionState.SEALED:
            self._range().check(first)

    async def headers(self) -> dict[str, str]:
        """The headers before the first byte; with totals only if whole partitions were asked for and are sealed."""
        ticket, dataset = self.ticket, self.dataset
        names: Sequence[object] = (
            [ticket.partition] if ticket.partition is not None else ticket.partitions or ()
        )
        of = f"{dataset.name}/{','.join(map(str, names))}" if names else dataset.name
        totals, sealed = (
            Trailers(of_one=ticket.partition is not None),
            ticket.partition is not None or dataset.sealed,
        )
        async for index in in_slices(self._indices):
            if dataset.lacks_frames(index):
                continue
            partition = dataset.partition(index)
            sealed = sealed and partition.state is PartitionState.SEALED
            if not sealed:
                break
            totals.add(self._range(), partition)
        whole = sealed and ticket.until is None and not (ticket.partitions and ticket.from_)
        return {
            **dict(head_of_read(dataset)),
            SEALED_HEADER: "true" if sealed else "false",
            PARTITION_HEADER: of,
            **dict(self._range().place()),
            # A URL without a generation means the current one.
            "Cache-Control": "no-store",
            **(totals.fields if whole else {}),
        }

    async def answer(self, request: web.Request, call: ServedCall) -> web.StreamResponse:
        """Send the stream to its end, or cut it.

        Raises:
            FlightShuffleError: before the first byte it becomes a status; after it the connection is cut.
            ConnectionError: the client has left.
        """
        reads, dataset, ticket, peer = self.reads, self.dataset, self.ticket, self.peer
        first_index = self._indices[0]
        dataset.attached.want(dataset, first_index)
        await reads.loading.load(dataset, dataset.partition(first_index))
        self.check()
        pace = Pace(proven=not request.secure)  # see outlet
        call.reads(pace, dataset)
        reader = Reader(dataset.name, first_index, peer, pace)
        schema = await reads.schema_of(dataset, reader)
        indices = self._indices  # in one step with the headers' totals: an append adds partitions
        ends = None if ticket.partitions is None else PartitionEnds(dataset, schema)
        trailers = Trailers(of_one=ticket.partition is not None)
        trailers.add(self._range(), dataset.partition(first_index))
        stream, checked = await _begun(request, await self.headers(), trailers.fields)
        trailers.clear()
        try:
            await reads.delivery.deliver(stream.write, _schema_chunks(schema.header, checked=checked), reader)
            present = Slice()  # of all partitions: many may have a few small frames
            for index in indices:
                reader = Reader(dataset.name, index, peer, pace, ticket.reader)
                if not dataset.lacks_frames(index):
                    frame_range = self._range(index)
                    await self._send_partition(stream, reader, frame_range, present, checked=checked)
                    await present.end()
                    # Not later: a source's partition may be released as soon as it has no reader.
                    trailers.add(frame_range, dataset.partition(index))
                if ends is not None:
                    end = [FramedMessage(each.parts, each.crc32c) for each in await ends.of(index)]
                    await reads.delivery.deliver(stream.write, chunks_of(end, checked=checked), reader)
                    await present.end()
            check_names_start(dataset, ticket.start)  # it may have been sealed meanwhile
            await reads.delivery.deliver(stream.finish, trailers.fields, reader)
            async for index in in_slices(indices):
                if not dataset.lacks_frames(index):
                    self._range(index).ended(dataset, Reader(dataset.name, index, peer, name=ticket.reader))
        finally:
            stream.cut_unless_whole()
        return stream

    async def _send_partition(
        self, stream: ArrowStream, reader: Reader, frame_range: FrameRange, present: Slice, *, checked: bool
    ) -> None:
        reads, partition = self.reads, self.dataset.partition(reader.partition)

        async def parked(drained: Awaitable[None]) -> None:
            await reads.delivery.deliver(lambda _: drained, None, reader, partition=partition)

        outlet = stream.outlet(parked)
        most_bytes = SECURE_BURST_BYTES if outlet is None else BURST_BYTES
        burst_bytes = min(most_bytes, reads.budget.max_message_bytes // 8)
        bursts = reads.read(self.dataset, reader, frame_range, burst_bytes=burst_bytes)
        try:
            async with aclosing(bursts):
                async for burst in bursts:
                    if outlet is not None:
                        await outlet.send(burst, checked=checked)
                    else:
                        parts = chunks_of(messages_of(burst), checked=checked)
                        await reads.delivery.deliver(stream.write, parts, reader, room=burst[0].room)
                        del parts
                    await present.end()
        finally:
            if outlet is not None:
                outlet.close()

    def _range(self, index: int | None = None) -> FrameRange:
        """Of the partition of that number; None for the first one."""
        first = index in (None, self._indices[0])
        return FrameRange(self.ticket.from_ if first else 0, self.ticket.until)


@dataclass(frozen=True)
class BulkVersionRead:
    """One request to read versions: ``GET /v1/datasets/{name}/partitions/0?as_of=…&after=…&follow=true``.

    The terminator follows only the end of a snapshot or of deltas; a follower's stream is cut. Each message's
    ``custom_metadata`` names its version.
    """

    reads: Reads
    dataset: Dataset
    read: VersionRead
    peer: str

    def check(self) -> None:
        """Raise the errors that a read would raise at once, while an HTTP status can still be sent."""
        self.read.check()

    async def headers(self) -> dict[str, str]:
        return {
            **dict(head_of_read(self.dataset)),
            PARTITION_HEADER: f"{self.dataset.name}/0",
            "Cache-Control": "no-store",
        }

    async def answer(self, request: web.Request, call: ServedCall) -> web.StreamResponse:
        """As :meth:`BulkRead.answer`."""
        self.check()
        delivery, counters = self.reads.delivery, self.reads.counters
        counters.gets += 1
        pace = Pace()
        call.reads(pace, self.dataset)
        reader = Reader(self.dataset.name, 0, self.peer, pace)
        stream, checked = await _begun(request, await self.headers(), (ROWS_TRAILER, FRAMES_TRAILER))
        rows = frames = 0
        try:
            schema = _schema_chunks(self.read.schema_header(), checked=checked)
            await delivery.deliver(stream.write, schema, reader)
            async with aclosing(self.read.bursts(reader)) as bursts:
                async for burst in bursts:
                    messages = [FramedMessage(message.parts, message.crc32c) for message in burst]
                    await delivery.deliver(
                        stream.write, chunks_of(messages, checked=checked), reader, room=burst.room
                    )
                    for message in burst:
                        counters.frames_sent(1, message.size_bytes)
                        pace.count(message.rows, message.size_bytes)
                        rows, frames = rows + message.rows, frames + 1
                    self.dataset.touch()
                    del burst, messages
            trailers = {ROWS_TRAILER: str(rows), FRAMES_TRAILER: str(frames)}
            await delivery.deliver(stream.finish, trailers, reader)
        finally:
            stream.cut_unless_whole()
        return stream


async def _begun(
    request: web.Request, headers: Mapping[str, str], trailers: Iterable[str]
) -> tuple[ArrowStream, bool]:
    """An answer whose head was sent, and whether its chunks have checksums. ``trailers``: their names."""
    checked = request.headers.get(CHECKSUMS_HEADER) == CHECKSUMS
    extra = {CHECKSUMS_HEADER: CHECKSUMS} if checked else {}
    stream = ArrowStream({**headers, "Trailer": ", ".join(trailers), **extra})
    await stream.prepare(request)
    return stream, checked


def _schema_chunks(header: bytes, *, checked: bool) -> list[Part]:
    message = FramedMessage(wire.FlightData(header=memoryview(header)), message_crc32c(header))
    return chunks_of([message], checked=checked)
