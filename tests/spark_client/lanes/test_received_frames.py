"""What a stream finds out by the totals of the range that it asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from flight_server.protocol import PartitionFailed, Ticket
from spark_client.connection import RemoteServer, Timeouts
from spark_client.lanes.partition_stream import PartitionStream
from tests.support.http_source import END_OF_STREAM, HEAD, HttpSource, chunk, last_chunk, messages, well

pytestmark = pytest.mark.usefixtures("hasty")

SCHEMA = pa.schema([("n", pa.int64())])
BATCHES = [pa.record_batch({"n": pa.array(range(i * 100, (i + 1) * 100))}) for i in range(5)]


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    made = RemoteServer("grpc://127.0.0.1:1", timeouts=Timeouts(tries=2))
    yield made
    made.close()


def read_all(stream: PartitionStream) -> list[int]:
    numbers: list[int] = []
    try:
        while (batch := stream.read()) is not None:
            numbers += batch["n"].to_pylist()
    finally:
        stream.close()
    return numbers


def test_a_server_that_gives_another_range_is_found_out(server: RemoteServer) -> None:
    """One that knows no ``until`` gives too much; one that gives too little is asked again, and then disbelieved."""
    ticket = Ticket("d", 0, "g1", 1, until=3)
    with HttpSource(well(BATCHES, SCHEMA)) as source:
        with pytest.raises(PartitionFailed, match="cannot be trusted"):
            read_all(PartitionStream(server, ticket, locations=[source.url], lane="bulk"))
        assert "&from=1&until=3&" in source.requests[0][0]
    short = HEAD, *map(chunk, messages(BATCHES[1:2], SCHEMA)), chunk(END_OF_STREAM), last_chunk(100, 1, 1)
    with HttpSource(lambda *_: short) as source, pytest.raises(PartitionFailed, match="to before 3"):
        read_all(PartitionStream(server, ticket, locations=[source.url], lane="bulk"))
