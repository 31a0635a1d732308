"""The bulk lane between the real server and the client, over a network that breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Ticket
from flight_server.protocol.errors import NotFound, ProducerFailed, StaleTicket, Unauthenticated
from spark_client.connection import Server
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


@pytest.fixture
def shaky(process: ServerProcess) -> Iterator[Proxy]:
    """A proxy before the bulk lane."""
    assert process.http is not None
    with Proxy.to(process.http) as made:
        yield made


def bulk(server: Server, location: str, ticket: Ticket) -> PartitionStream:
    return PartitionStream(server, ticket, locations=[location], lane="bulk")


def test_every_partition_comes_whole_over_the_bulk_lane_alone(server: Server, name: str) -> None:
    put_all(server, name, 5)
    streams = partition_streams(server, server.flight_info(name).endpoints, lane="bulk")
    assert {stream.address.lane for stream in streams} == {"bulk"}
    with merge(streams, pool=MemoryPool(40_000), timeouts=QUICK) as merged:
        table = pa.Table.from_batches(merged, SCHEMA)
    for partition in range(5):
        mine = table.filter(pa.compute.equal(table["partition"], partition))
        assert mine["n"].to_pylist() == EVERYTHING


def test_more_partitions_than_connections_come_whole_over_both_lanes(server: Server, name: str) -> None:
    put_all(server, name, 100, frames=2)
    streams = partition_streams(server, server.flight_info(name).endpoints)
    with merge(streams, timeouts=QUICK) as merged:
        assert sum(batch.num_rows for batch in merged) == 100 * 2 * ROWS


@pytest.mark.parametrize("frames", [0, 1])
def test_the_smallest_partitions_come_whole(server: Server, name: str, frames: int) -> None:
    put(server, name, frames=frames)
    stream = partition_streams(server, server.flight_info(name).endpoints, lane="bulk")[0]
    assert read_all(stream) == list(range(frames * ROWS))


def test_frames_are_read_while_they_are_written(server: Server, name: str) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    streams = partition_streams(server, server.flight_info(name).endpoints, lane="bulk")
    with merge(streams, timeouts=QUICK) as merged:
        for frame in range(1, 10):
            assert next(merged) == batch_of(0, frame - 1)
            writer.write_batch(batch_of(0, frame))
        writer.close()
        assert len(list(merged)) == 1


def test_any_byte_can_be_the_last_one_of_its_connection(server: Server, shaky: Proxy, name: str) -> None:
    put(server, name, frames=3)
    ticket = Ticket.parse(server.flight_info(name).endpoints[0].ticket.ticket)
    before = shaky.bytes_back
    read_all(bulk(server, shaky.http, ticket))
    size_bytes = shaky.bytes_back - before
    for cut_at in range(1, size_bytes, max(1, size_bytes // 60) | 1):
        stream = bulk(server, shaky.http, ticket)
        shaky.cut_after(cut_at)
        assert read_all(stream) == list(range(3 * ROWS)), f"cut after {cut_at} of {size_bytes} bytes"


def test_merged_streams_survive_cuts(server: Server, shaky: Proxy, name: str) -> None:
    put_all(server, name, 8)
    rows: dict[int, list[int]] = {i: [] for i in range(8)}
    with merge([bulk(server, shaky.http, Ticket(name, i)) for i in range(8)], timeouts=QUICK) as merged:
        for count, batch in enumerate(merged):
            rows[batch["partition"][0].as_py()] += batch["n"].to_pylist()
            if count in (3, 40, 90):
                shaky.cut()
    assert all(numbers == EVERYTHING for numbers in rows.values())


def test_a_lane_that_stays_away_is_an_error_and_with_a_choice_the_other_lane(
    server: Server, shaky: Proxy, name: str
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


def test_it_is_never_resumed_in_another_generation(server: Server, shaky: Proxy, name: str) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    stream = bulk(server, shaky.http, Ticket(name, 0))
    assert stream.read() == batch_of(0, 0)
    shaky.refuse()
    shaky.cut()
    server.action("drop", {"dataset": name})
    put(server, name, frames=3)
    shaky.refuse(refusing=False)
    with pytest.raises(StaleTicket, match="replaced or dropped after 1 of its frames"):
        stream.read()
    stream.close()


def test_errors_are_the_servers_own(process: ServerProcess, server: Server, name: str) -> None:
    assert process.http is not None
    with pytest.raises(NotFound, match="no/such/thing"):
        read_all(bulk(server, process.http, Ticket("no/such/thing", 0)))
    put(server, name)
    with pytest.raises(StaleTicket):
        read_all(bulk(server, process.http, Ticket(name, 0, "other")))


def test_a_producer_that_breaks_off_is_an_error_and_never_a_short_result(
    process: ServerProcess, server: Server, name: str
) -> None:
    assert process.http is not None
    with Proxy.to(process.location) as between:
        producer = Server(between.location, timeouts=QUICK)
        writer = open_put(producer, name)
        writer.write_batch(batch_of(0, 0))
        stream = bulk(server, process.http, Ticket(name, 0))
        with merge([stream], timeouts=QUICK) as merged:
            assert next(merged) == batch_of(0, 0)
            between.cut()
            with pytest.raises(ProducerFailed):
                list(merged)
        producer.close()


def test_a_stall_says_what_the_server_waits_for(process: ServerProcess, name: str) -> None:
    assert process.http is not None
    server = Server(process.location, timeouts=replace(QUICK, stall_seconds=0.3))
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    # Whether the first batch comes before the stall depends on the machine; that it stalls does not.
    with (
        merge([bulk(server, process.http, Ticket(name, 0))], timeouts=QUICK) as merged,
        pytest.raises(StreamStalled, match="producer"),
    ):
        list(merged)
    server.close()


def test_a_schema_that_nobody_says_is_an_error_in_time_and_closing_does_not_wait_for_it(
    process: ServerProcess, server: Server, name: str
) -> None:
    assert process.http is not None
    create(server, name)
    impatient = Server(process.location, timeouts=replace(QUICK, first_message_seconds=0.5))
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
        server = Server(guarded.location, token="open sesame", timeouts=QUICK)
        put(server, name, frames=2)
        for lane in ("grpc", "bulk"):
            streams = partition_streams(server, server.flight_info(name).endpoints, lane=lane)
            assert read_all(streams[0]) == list(range(2 * ROWS))
        stranger = Server(guarded.location, token="guess", timeouts=QUICK)
        with pytest.raises(Unauthenticated):
            stranger.flight_info(name)
        with pytest.raises(Unauthenticated):
            read_all(bulk(stranger, guarded.http, Ticket(name, 0)))
        stranger.close()
        server.close()
