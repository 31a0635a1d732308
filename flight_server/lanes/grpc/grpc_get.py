"""DoGet: a partition over gRPC.

The schema goes out as soon as it is known, then each frame as it was stored; the trailers carry the totals. Frames go
out in turns (see ``turns``), so that they do not hold up new calls.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from flight_server.concurrency import Turns
from flight_server.datasets import Catalogue
from flight_server.protocol import Ticket, wire
from flight_server.tiering import Reader
from flight_server.transfer import Reads, Run, end_of_read, ended, head_of_read

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types


class GrpcGet:
    """Serves DoGet."""

    def __init__(self, catalogue: Catalogue, reads: Reads) -> None:
        self._catalogue = catalogue
        self._reads = reads
        self._turns = Turns()

    async def serve(self, request: bytes, context: Context) -> None:
        """Send the partition that the ticket names, to its end.

        Raises:
            FlightShuffleError: see :meth:`Reads.read`; the client has got only a part, and no totals.
        """
        self._catalogue.check_open()
        ticket = Ticket.parse(wire.bytes_field(request, 1, "Ticket"))
        dataset, index = self._catalogue.resolve(ticket)
        dataset.touch()
        reader = Reader(dataset.name, index, context.peer(), name=ticket.reader)
        await context.send_initial_metadata(tuple(head_of_read(dataset)))
        schema = await self._reads.schema_of(dataset, reader)
        await context.write(wire.flight_data(schema.header))
        async with aclosing(self._reads.read(dataset, reader, ticket.from_)) as runs:
            async for run in runs:
                await self._send(run, reader, context)
        totals = dataset.partition(index).totals
        context.set_trailing_metadata(tuple(end_of_read(totals, ticket.from_)))
        ended(dataset, reader, ticket.from_)

    async def _send(self, run: Run, reader: Reader, context: Context) -> None:
        # A function of its own, so that no variable holds a frame while its reader waits for the next.
        for outgoing in run:
            await self._turns.take(outgoing.message.size_bytes)
            await self._reads.delivery.deliver(context.write, outgoing.data, reader, room=outgoing.room)
