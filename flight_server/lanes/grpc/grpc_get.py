"""DoGet: a partition over gRPC.

The schema goes out as soon as it is known, then each frame as it was stored; the trailers carry the totals. Frames go
out in turns (see ``turns``), so that they do not hold up new calls.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from flight_server.changelogs import Store, schema_header
from flight_server.concurrency import Turns
from flight_server.datasets import Catalogue, Dataset
from flight_server.protocol import FRAMES_TRAILER, ROWS_TRAILER, Kind, Ticket, Versions, wire
from flight_server.tiering import Reader
from flight_server.transfer import FrameRange, Reads, Run, check_no_range, check_no_versions, head_of_read

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types


class GrpcGet:
    """Serves DoGet."""

    def __init__(self, catalogue: Catalogue, reads: Reads, changelogs: Store) -> None:
        self._catalogue = catalogue
        self._changelogs = changelogs
        self._reads = reads
        self._turns = Turns()

    async def serve(self, request: bytes, context: Context) -> None:
        """Send the frames that the ticket names.

        Raises:
            FlightShuffleError: see :meth:`Reads.read`; the client has got only a part, and no totals.
        """
        self._catalogue.check_open()
        ticket = Ticket.parse(wire.bytes_field(request, 1, "Ticket"))
        dataset, index = self._catalogue.resolve(ticket)
        dataset.touch()
        check_no_range(dataset, ticket.until)
        reader = Reader(dataset.name, index, context.peer(), name=ticket.reader)
        if dataset.kind is Kind.CHANGELOG:
            await self._serve_changelog(dataset, ticket.versions or Versions(), reader, context)
            return
        check_no_versions(dataset, ticket.versions)
        await context.send_initial_metadata(tuple(head_of_read(dataset)))
        schema = await self._reads.schema_of(dataset, reader)
        await context.write(wire.flight_data(schema.header))
        wanted = FrameRange(ticket.from_, ticket.until)
        async with aclosing(self._reads.read(dataset, reader, wanted)) as runs:
            async for run in runs:
                await self._send(run, reader, context)
        context.set_trailing_metadata(tuple(wanted.trailers(dataset.partition(index))))
        wanted.ended(dataset, reader)

    async def _serve_changelog(
        self, dataset: Dataset, versions: Versions, reader: Reader, context: Context
    ) -> None:
        reads, changelog = self._changelogs.reads, self._changelogs.of(dataset)
        reads.check(changelog, versions)
        self._reads.counters.gets += 1
        await context.send_initial_metadata(tuple(head_of_read(dataset)))
        await context.write(wire.flight_data(schema_header(reads.schema(changelog, versions))))
        rows = frames = 0
        async with aclosing(reads.read(changelog, reader, versions)) as parts:
            async for part in parts:
                for message in part:
                    await self._turns.take(message.size_bytes)
                    await self._reads.delivery.deliver(
                        context.write, message.flight_data(), reader, room=part.room
                    )
                    self._reads.counters.message_out(message.size_bytes)
                    rows, frames = rows + message.rows, frames + 1
                dataset.touch()
                del part
        context.set_trailing_metadata(((ROWS_TRAILER, str(rows)), (FRAMES_TRAILER, str(frames))))

    async def _send(self, run: Run, reader: Reader, context: Context) -> None:
        # A function of its own, so that no variable holds a frame while its reader waits for the next.
        for outgoing in run:
            await self._turns.take(outgoing.message.size_bytes)
            await self._reads.delivery.deliver(context.write, outgoing.data, reader, room=outgoing.room)
