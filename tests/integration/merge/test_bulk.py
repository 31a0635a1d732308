"""The bulk lane between the real server and the client, over a network that breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Ticket
from flight_server.protocol.errors import Unauthenticated
from spark_client.connection import RemoteServer
from spark_client.lanes.lane import BrokenStream
from spark_client.lanes.partition_stream import PartitionStream, StreamStalled, partition_streams
from spark_client.merge.merged import merge
from tests.support.merging import (
    EVERYTHING,
    FRAMES,
    QUICK,
    ROWS,
    SCHEMA,
    batch_of,
    create,
    open_put,
    put,
    put_all,
    read_all,
)
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture
def shaky(process: ServerProcess) -> Iterator[Proxy]:
    """A proxy before the bulk lane."""
    assert process.http is not None
    with Proxy.to(process.http) as made:
        yield made


def bulk(server: RemoteServer, location: str, ticket: Ticket) -> PartitionStream:
    return PartitionStream(server, ticket, locations=[location], lane="bulk")


def test_every_partition_comes_whole_over_the_bulk_lane_alone(server: RemoteServer, name: str) -> None:
    put_all(server, name, 5)
    streams = partition_streams(server, server.flight_info(name).endpoints, lane="bulk")
    assert {stream.address.lane for stream in streams} == {"bulk"}
    with merge(streams, pool=MemoryPool(40_000), timeouts=QUICK) as merged:
        table = pa.Table.from_batches(merged, SCHEMA)
    for partition in range(5):
        mine = table.filter(pa.compute.equal(table["partition"], partition))
        assert mine["n"].to_pylist() == EVERYTHING


def test_more_partitions_than_connections_come_whole_over_both_lanes(server: RemoteServer, name: str) -> None:
    put_all(server, name, 100, frames=2)
    streams = partition_streams(server, server.flight_info(name).endpoints)
    with merge(streams, timeouts=QUICK) as merged:
        assert sum(batch.num_rows for batch in merged) == 100 * 2 * ROWS


@pytest.mark.parametrize("frames", [0, 1])
def test_the_smallest_partitions_come_whole(server: RemoteServer, name: str, frames: int) -> None:
    put(server, name, frames=frames)
    stream = partition_streams(server, server.flight_info(name).endpoints, lane="bulk")[0]
    assert read_all(stream) == list(range(frames * ROWS))


def test_frames_are_read_while_they_are_written(server: RemoteServer, name: str) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    streams = partition_streams(server, server.flight_info(name).endpoints, lane="bulk")
    with merge(streams, timeouts=QUICK) as merged:
        for frame in range(1, 10):
            assert next(merged) == batch_of(0, frame - 1)
            writer.write_batch(batch_of(0, frame))
        writer.close()
        assert len(list(merged)) == 1


def test_a_lane_that_stays_away_is_an_error_and_with_a_choice_the_other_lane(
    server: RemoteServer, shaky: Proxy, name: str
) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    either = PartitionStream(server, Ticket(name, 0), locations=[shaky.http, server.location])
    only = bulk(server, shaky.http, Ticket(name, 0))
    assert either.read() == only.read() == batch_of(0, 0)
    shaky.refuse()
    shaky.cut()
    with pytest.raises(BrokenStream, match="beyond frame 1"):
        only.read()
    for frame in range(1, FRAMES):
        writer.write_batch(batch_of(0, frame))
    writer.close()
    assert read_all(either) == EVERYTHING[ROWS:]
    assert either.address.lane == "grpc"
    only.close()


def test_a_missing_schema_is_an_error_in_time_and_closing_does_not_wait_for_it(
    process: ServerProcess, server: RemoteServer, name: str
) -> None:
    assert process.http is not None
    create(server, name)
    impatient = RemoteServer(process.location, timeouts=replace(QUICK, first_message_seconds=0.5))
    with (
        merge([bulk(impatient, process.http, Ticket(name, 0))], timeouts=QUICK) as merged,
        pytest.raises(StreamStalled),
    ):
        next(merged)
    with merge([bulk(server, process.http, Ticket(name, 0))], timeouts=QUICK):
        pass
    impatient.close()


def test_the_token_is_asked_for_on_both_lanes(name: str) -> None:
    with ServerProcess.start(token="open sesame") as guarded:
        assert guarded.http is not None
        server = RemoteServer(guarded.location, token="open sesame", timeouts=QUICK)
        put(server, name, frames=2)
        for lane in ("grpc", "bulk"):
            streams = partition_streams(server, server.flight_info(name).endpoints, lane=lane)
            assert read_all(streams[0]) == list(range(2 * ROWS))
        stranger = RemoteServer(guarded.location, token="guess", timeouts=QUICK)
        with pytest.raises(Unauthenticated):
            stranger.flight_info(name)
        with pytest.raises(Unauthenticated):
            read_all(bulk(stranger, guarded.http, Ticket(name, 0)))
        stranger.close()
        server.close()
