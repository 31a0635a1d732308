"""The client's streams over a network that breaks, and servers that replace or lose what is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from flight_server.protocol import Ticket
from flight_server.protocol.errors import NotFound, StaleTicket
from spark_client.connection import RemoteServer
from spark_client.lanes.lane import BrokenStream
from spark_client.lanes.read_stream import ReadStream, StreamStalled
from spark_client.merge.merged import merge
from tests.support.merging import (
    EVERYTHING,
    FRAMES,
    QUICK,
    ROWS,
    batch_of,
    batches_from,
    open_put,
    partition_stream,
    put,
    put_all,
    read_all,
)
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")


@dataclass(frozen=True)
class Way:
    """One lane, through a network that the test breaks."""

    lane: str
    proxy: Proxy
    server: RemoteServer

    def stream(self, ticket: Ticket) -> ReadStream:
        if self.lane == "grpc":
            return partition_stream(self.server, ticket, lane="grpc")
        return partition_stream(self.server, ticket, locations=[self.proxy.http], lane="bulk")


@pytest.fixture(params=["grpc", "bulk"])
def way(request: pytest.FixtureRequest, process: ServerProcess) -> Iterator[Way]:
    assert process.http is not None
    with Proxy.to(process.location if request.param == "grpc" else process.http) as between:
        server = RemoteServer(
            between.location if request.param == "grpc" else process.location, timeouts=QUICK
        )
        yield Way(request.param, between, server)
        server.close()


def test_a_connection_that_breaks_at_each_frame_is_resumed_each_time(
    server: RemoteServer, proxy: Proxy, through: RemoteServer, name: str
) -> None:
    writer = open_put(server, name)
    stream = partition_stream(through, Ticket(name, 0), lane="grpc")
    batches = batches_from(stream)
    for frame in range(FRAMES):
        # Written when it is read, so that no frame has come before the cut.
        writer.write_batch(batch_of(0, frame))
        assert next(batches) == batch_of(0, frame)
        assert stream.resumes >= frame
        proxy.cut()
    writer.close()
    assert next(batches, None) is None
    stream.close()


def test_any_byte_can_be_the_last_one_of_its_connection(server: RemoteServer, way: Way, name: str) -> None:
    put(server, name, frames=2)
    ticket = Ticket.parse(server.flight_info(name).endpoints[0].ticket.ticket)
    before = way.proxy.bytes_back
    read_all(way.stream(ticket))
    size_bytes = way.proxy.bytes_back - before
    # A step that meets header, metadata, body, padding and trailers in some run.
    for cut_at in range(1, size_bytes, max(1, size_bytes // 60) | 1):
        stream = way.stream(ticket)
        way.proxy.cut_after(cut_at)
        assert read_all(stream) == list(range(2 * ROWS)), f"cut after {cut_at} of {size_bytes} bytes"


def test_merged_streams_survive_cuts(server: RemoteServer, way: Way, name: str) -> None:
    put_all(server, name, 8)
    rows: dict[int, list[int]] = {i: [] for i in range(8)}
    with merge([way.stream(Ticket(name, i)) for i in range(8)], timeouts=QUICK) as merged:
        for count, batch in enumerate(merged):
            rows[batch["partition"][0].as_py()] += batch["n"].to_pylist()
            if count in (3, 40, 90):
                way.proxy.cut()
    assert all(numbers == EVERYTHING for numbers in rows.values())


def test_a_server_that_stays_away_is_an_error_after_a_bounded_number_of_tries(
    server: RemoteServer, proxy: Proxy, through: RemoteServer, name: str
) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    stream = partition_stream(through, Ticket(name, 0), lane="grpc")
    with merge([stream], timeouts=QUICK) as merged:
        next(merged)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(BrokenStream) as raised:
            next(merged)
    assert "beyond frame 1" in raised.value.message
    assert f"{QUICK.tries + 1} tries" in raised.value.message
    assert proxy.location in raised.value.message


def test_the_next_location_is_tried_when_the_first_one_is_gone(server: RemoteServer, name: str) -> None:
    put(server, name)
    locations = ["grpc://127.0.0.1:1", "arrow-flight-reuse-connection://?"]
    stream = partition_stream(server, Ticket(name, 0), locations=locations, lane="grpc")
    assert read_all(stream) == EVERYTHING


def test_a_broken_stream_is_never_resumed_in_another_generation(
    server: RemoteServer, way: Way, name: str
) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    stream = way.stream(Ticket(name, 0))
    batches = batches_from(stream)
    assert next(batches) == batch_of(0, 0)
    assert stream.cursor.generation is not None
    way.proxy.refuse()
    way.proxy.cut()
    server.action("drop", {"dataset": name})
    put(server, name, frames=3)
    way.proxy.refuse(refusing=False)
    with pytest.raises(StaleTicket, match="went away after 1 of its frames"):
        next(batches)
    stream.close()


def test_an_unknown_dataset_and_a_stale_ticket_are_said_in_the_servers_words(
    server: RemoteServer, way: Way, name: str
) -> None:
    with merge([way.stream(Ticket("no/such/thing", 0))], timeouts=QUICK) as merged:
        with pytest.raises(NotFound, match="no/such/thing") as raised:
            next(merged)
        assert "grpc" not in raised.value.message.lower()
    put(server, name)
    with merge([way.stream(Ticket(name, 0, "other"))], timeouts=QUICK) as merged, pytest.raises(StaleTicket):
        next(merged)


def test_a_stall_names_stream_server_and_what_the_server_waits_for(way: Way, name: str) -> None:
    server = RemoteServer(way.server.location, timeouts=replace(QUICK, stall_seconds=0.3))
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    stream = replace(way, server=server).stream(Ticket(name, 0))
    # Whether the first batch comes before the stall depends on the machine; that it stalls does not.
    with merge([stream], timeouts=QUICK) as merged, pytest.raises(StreamStalled) as raised:
        list(merged)
    for word in ("partition 0", name, stream.address.location, "producer"):
        assert word in raised.value.message
    server.close()
