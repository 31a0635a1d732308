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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from flight_server.concurrency import Slice, in_slices
from flight_server.datasets import Dataset, PartitionState
from flight_server.kinds import VersionedMessage, VersionRead
from flight_server.memory import Reservation
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
from flight_server.transfer import FrameRange, Reads, Trailers, head_of_read, send_partitions, send_versions

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
        """Send the head, once. Raises InvalidRequest: the request is older than HTTP/1.1; ConnectionError: the client
        has left.
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
    """One request to read partitions one after the other, the first one by this ``reader``."""

    reads: Reads
    dataset: Dataset
    ticket: Ticket
    reader: Reader

    @property
    def _indices(self) -> Sequence[int]:
        """The partitions of the moment of the call."""
        listed = self.ticket.partitions
        return [self.reader.partition] if listed is None else self.dataset.listed(listed)

    def check(self) -> None:
        """Raise the errors that :meth:`Reads.read` would raise at once, while an HTTP status can still be sent."""
        if self.ticket.partitions is not None and self.dataset.failure is not None:
            for partition in self.dataset.partitions():
                partition.check()
        first = self.dataset.partition(self.reader.partition)
        first.check()
        first.subscribe(self.ticket.from_).close()
        if first.state is PartitionState.SEALED:
            FrameRange.of(self.ticket).check(first)

    async def headers(self) -> dict[str, str]:
        """The headers before the first byte; with totals only if whole partitions were asked for and are sealed."""
        ticket, dataset, indices = self.ticket, self.dataset, self._indices
        numbers = "" if ticket.partitions == ALL else f"/{','.join(map(str, indices))}"
        totals = Trailers(of_one=ticket.partitions is None)
        sealed = ticket.partitions is None or dataset.sealed
        async for index in in_slices(indices):
            if dataset.lacks_frames(index):
                continue
            partition = dataset.partition(index)
            sealed = sealed and partition.state is PartitionState.SEALED
            if not sealed:
                break
            totals.add(FrameRange.of(ticket), partition)
        whole = sealed and ticket.until is None and not (ticket.partitions and ticket.from_)
        return {
            **dict(head_of_read(dataset)),
            SEALED_HEADER: "true" if sealed else "false",
            PARTITION_HEADER: dataset.name + numbers,
            **dict(FrameRange.of(ticket).place()),
            # A URL without a generation means the current one.
            "Cache-Control": "no-store",
            **(totals.fields if whole else {}),
        }

    async def answer(self, request: web.Request, call: ServedCall) -> web.StreamResponse:
        """Send the stream to its end, or cut it. Raises FlightShuffleError: before the first byte it becomes a status;
        after it the connection is cut; ConnectionError: the client has left.
        """
        reads, dataset, ticket, reader = self.reads, self.dataset, self.ticket, self.reader
        dataset.attached.want(dataset, reader.partition)
        first = dataset.partition(reader.partition)
        await reads.loading.load(dataset, first)
        self.check()
        call.reads(reader.pace, dataset)
        schema = await reads.schema_of(dataset, reader)
        indices = self._indices  # in one step with the headers' totals: an append adds partitions
        of_one = ticket.partitions is None
        trailers = dict(FrameRange.of(ticket).trailers(first)) if of_one else (ROWS_TRAILER, FRAMES_TRAILER)
        stream = _Stream(reads, dataset, request)
        async with stream.begun(await self.headers(), trailers, schema.header, reader) as response:
            await send_partitions(dataset, ticket, indices, reader, stream)
        return response


@dataclass(frozen=True)
class BulkVersionRead:
    """One request to read versions: ``GET /v1/datasets/{name}/partitions/0?as_of=…&after=…&follow=true``.

    The terminator follows only the end of a snapshot or of deltas; a follower's stream is cut. Each message's
    ``custom_metadata`` names its version.
    """

    reads: Reads
    dataset: Dataset
    read: VersionRead
    reader: Reader

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
        call.reads(self.reader.pace, self.dataset)
        trailers, header = (ROWS_TRAILER, FRAMES_TRAILER), self.read.schema_header()
        stream = _Stream(self.reads, self.dataset, request)
        async with stream.begun(await self.headers(), trailers, header, self.reader) as response:
            await send_versions(self.dataset, self.read, self.reader, stream, self.reads.counters)
        return response


class _Stream:
    """The stream that answers one request."""

    def __init__(self, reads: Reads, dataset: Dataset, request: web.Request) -> None:
        self._reads = reads
        self._dataset = dataset
        self._request = request
        self._checked = request.headers.get(CHECKSUMS_HEADER) == CHECKSUMS

    @asynccontextmanager
    async def begun(
        self, headers: Mapping[str, str], trailers: Iterable[str], schema_header: bytes, reader: Reader
    ) -> AsyncIterator[ArrowStream]:
        """Send the head, with the trailers' names, and the schema. Without ``finish`` the connection is cut."""
        extra = {CHECKSUMS_HEADER: CHECKSUMS} if self._checked else {}
        self._response = ArrowStream({**headers, "Trailer": ", ".join(trailers), **extra})
        await self._response.prepare(self._request)
        schema = wire.FlightData(header=memoryview(schema_header))
        try:
            await self._write([FramedMessage(schema, message_crc32c(schema_header))], reader)
            yield self._response
        finally:
            self._response.cut_unless_whole()

    async def send_partition(self, reader: Reader, frame_range: FrameRange, present: Slice) -> None:
        reads, partition = self._reads, self._dataset.partition(reader.partition)

        async def parked(drained: Awaitable[None]) -> None:
            await reads.delivery.deliver(lambda _: drained, None, reader, partition=partition)

        outlet = self._response.outlet(parked)
        most_bytes = SECURE_BURST_BYTES if outlet is None else BURST_BYTES
        burst_bytes = min(most_bytes, reads.budget.max_message_bytes // 8)
        bursts = reads.read(self._dataset, reader, frame_range, burst_bytes=burst_bytes)
        try:
            async with aclosing(bursts):
                async for burst in bursts:
                    if outlet is not None:
                        await outlet.send(burst, checked=self._checked)
                    else:
                        await self._write(messages_of(burst), reader, burst[0].room)
                    await present.end()
        finally:
            if outlet is not None:
                outlet.close()

    async def send_made(
        self, messages: Sequence[VersionedMessage], reader: Reader, room: Reservation | None = None
    ) -> None:
        await self._write([FramedMessage(each.parts, each.crc32c) for each in messages], reader, room)

    async def finish(self, trailers: Mapping[str, str], reader: Reader) -> None:
        await self._reads.delivery.deliver(self._response.finish, trailers, reader)

    async def _write(
        self, messages: Sequence[FramedMessage], reader: Reader, room: Reservation | None = None
    ) -> None:
        parts = chunks_of(messages, checked=self._checked)
        await self._reads.delivery.deliver(self._response.write, parts, reader, room=room)
