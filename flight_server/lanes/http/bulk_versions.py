"""The bulk lane for versions: ``GET /v1/datasets/{name}/partitions/0?as_of=…&after=…&follow=true``.

Guarantee: as ``bulk_get``'s: the terminator follows only the end of a snapshot or of deltas; a follower's stream is
cut. Each message's ``custom_metadata`` names its version.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from aiohttp import web

from flight_server.datasets import Dataset
from flight_server.kinds import VersionRead
from flight_server.memory import Pace
from flight_server.protocol import (
    CHECKSUMS,
    CHECKSUMS_HEADER,
    FRAMES_TRAILER,
    PARTITION_HEADER,
    ROWS_TRAILER,
    wire,
)
from flight_server.protocol.checksums import message_crc32c
from flight_server.reporting import ServedCall
from flight_server.tiering import Reader
from flight_server.transfer import Reads, head_of_read

from .bulk_get import ArrowStream
from .chunks import FramedMessage, chunks_of


@dataclass(frozen=True)
class BulkVersionRead:
    """One request to read versions."""

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
        """Send the stream to its end, or cut it.

        Raises:
            FlightShuffleError: before the first byte it becomes a status; after it the connection is cut.
            ConnectionError: the client has left.
        """
        self.check()
        delivery, counters = self.reads.delivery, self.reads.counters
        counters.gets += 1
        pace = Pace()
        call.reads(pace, self.dataset)
        reader = Reader(self.dataset.name, 0, self.peer, pace)
        checked = request.headers.get(CHECKSUMS_HEADER) == CHECKSUMS
        headers = {**await self.headers(), "Trailer": f"{ROWS_TRAILER}, {FRAMES_TRAILER}"}
        if checked:
            headers[CHECKSUMS_HEADER] = CHECKSUMS
        stream = ArrowStream(headers)
        await stream.prepare(request)
        rows = frames = 0
        try:
            header = self.read.schema_header()
            first = FramedMessage(wire.FlightData(header=memoryview(header)), message_crc32c(header))
            await delivery.deliver(stream.write, chunks_of([first], checked=checked), reader)
            async with aclosing(self.read.bursts(reader)) as bursts:
                async for burst in bursts:
                    messages = [FramedMessage(message.parts, message.crc32c) for message in burst]
                    await delivery.deliver(
                        stream.write, chunks_of(messages, checked=checked), reader, room=burst.room
                    )
                    for message in burst:
                        counters.message_out(message.size_bytes)
                        pace.count(message.rows, message.size_bytes)
                        rows, frames = rows + message.rows, frames + 1
                    self.dataset.touch()
                    del burst, messages
            trailers = {ROWS_TRAILER: str(rows), FRAMES_TRAILER: str(frames)}
            await delivery.deliver(stream.finish, trailers, reader)
        finally:
            stream.cut_unless_whole()
        return stream
