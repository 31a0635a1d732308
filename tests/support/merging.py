"""Datasets, streams and connections for the tests of the client's streams against a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import PutCommand, Ticket
from flight_server.protocol.errors import NotFound
from spark_client.connection import LaneChoice, RemoteServer, Timeouts
from spark_client.lanes import PartitionCursor, ReadStream
from tests.support.polling import eventually

SCHEMA = pa.schema([("partition", pa.int64()), ("n", pa.int64())])
FRAMES, ROWS = 20, 500
# Quick to try again, and patient with a machine that is slow.
QUICK = Timeouts(
    connect_seconds=20,
    call_seconds=30,
    first_message_seconds=30,
    stall_seconds=30,
)


def batch_of(partition: int, frame: int, rows: int = ROWS) -> pa.RecordBatch:
    numbers = pa.array(range(frame * rows, (frame + 1) * rows), pa.int64())
    return pa.record_batch([pa.array([partition] * rows, pa.int64()), numbers], schema=SCHEMA)


def create(server: RemoteServer, name: str, partitions: int = 1) -> None:
    server.action("create", {"dataset": name, "kind": "stream", "partitions": partitions})


def open_put(
    server: RemoteServer, name: str, partition: int = 0, mode: str = "create"
) -> flight.FlightStreamWriter:
    """A put that the server knows of: another connection may look for it."""
    command = PutCommand(name, partition, mode=mode).encode()
    writer = server.open_put(flight.FlightDescriptor.for_command(command), SCHEMA)[0]
    eventually(lambda: _is_known(server, name), expected=True)
    return writer


def _is_known(server: RemoteServer, name: str) -> bool:
    try:
        server.schema(name)
    except NotFound:
        return False
    return True


def put(
    server: RemoteServer, name: str, partition: int = 0, frames: int = FRAMES, mode: str = "create"
) -> None:
    writer = open_put(server, name, partition, mode)
    for frame in range(frames):
        writer.write_batch(batch_of(partition, frame))
    writer.close()


def put_all(server: RemoteServer, name: str, partitions: int, frames: int = FRAMES) -> None:
    create(server, name, partitions)
    for partition in range(partitions):
        put(server, name, partition, frames)


def partition_stream(
    server: RemoteServer, ticket: Ticket, *, locations: Sequence[str] = (), lane: LaneChoice = "auto"
) -> ReadStream:
    """A stream of the frames that the ticket asks for, not opened yet."""
    return ReadStream(server, PartitionCursor(ticket), locations=locations, lane=lane)


def streams_of(server: RemoteServer, name: str) -> list[ReadStream]:
    return [
        partition_stream(server, Ticket.parse(endpoint.ticket.ticket), lane="grpc")
        for endpoint in server.flight_info(name).endpoints
    ]


def batches_from(stream: ReadStream) -> Iterator[pa.RecordBatch]:
    """The batches of all bursts to come, one by one."""
    while (burst := stream.read_burst()) is not None:
        yield from burst.batches


def read_all(stream: ReadStream) -> list[int]:
    numbers = [number for batch in batches_from(stream) for number in batch["n"].to_pylist()]
    stream.close()
    return numbers


EVERYTHING = list(range(FRAMES * ROWS))
