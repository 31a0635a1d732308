"""Which lane a stream takes, and that it finds the other one when the first is shut."""

from __future__ import annotations

import gc
import os
import signal

import pytest

from flight_server.protocol import Ticket
from spark_client.connection import RemoteServer
from spark_client.lanes.lane import BrokenStream
from tests.support.http_source import Answer, HttpSource, well
from tests.support.merging import (
    EVERYTHING,
    FRAMES,
    ROWS,
    SCHEMA,
    batch_of,
    batches_from,
    open_put,
    partition_stream,
    put,
    read_all,
)
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")

BATCHES = [batch_of(0, frame) for frame in range(FRAMES)]


def ticket_of(server: RemoteServer, name: str) -> Ticket:
    return Ticket.parse(server.flight_info(name).endpoints[0].ticket.ticket)


def bulk_answer(server: RemoteServer, name: str) -> Answer:
    """What the bulk lane of this server answers for the dataset."""
    return well(BATCHES, SCHEMA, ticket_of(server, name).generation or "")


def test_the_grpc_lane_is_taken_when_it_is_asked_for(server: RemoteServer, name: str) -> None:
    put(server, name)
    with HttpSource(bulk_answer(server, name)) as source:
        stream = partition_stream(server, ticket_of(server, name), locations=[source.url], lane="grpc")
        assert read_all(stream) == EVERYTHING
        assert source.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\nhome",
        b"HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
def test_an_address_that_does_not_speak_the_bulk_lane_sends_the_stream_to_grpc(
    server: RemoteServer, name: str, answer: bytes
) -> None:
    put(server, name)
    with HttpSource(lambda *_: [answer], closes=True) as source:
        for _ in range(3):
            stream = partition_stream(server, ticket_of(server, name), locations=[source.url])
            assert read_all(stream) == EVERYTHING
            assert stream.resumes == 0
        assert len(source.requests) == 1, "it is left alone for a while"


def test_an_address_that_refuses_connections_sends_the_stream_to_grpc(
    server: RemoteServer, name: str
) -> None:
    put(server, name)
    url = "http://127.0.0.1:1"
    assert read_all(partition_stream(server, ticket_of(server, name), locations=[url])) == EVERYTHING
    with pytest.raises(BrokenStream, match=url):
        read_all(partition_stream(server, ticket_of(server, name), locations=[url], lane="bulk"))


def test_when_grpc_is_shut_the_bulk_lane_alone_is_enough(server: RemoteServer, name: str) -> None:
    put(server, name)
    ticket, answer = ticket_of(server, name), bulk_answer(server, name)
    blind = RemoteServer("grpc://127.0.0.1:1", timeouts=server.timeouts)
    with HttpSource(answer) as source:
        assert read_all(partition_stream(blind, ticket, locations=[source.url])) == EVERYTHING
    blind.close()


def test_a_lane_that_stays_away_is_an_error_and_with_a_choice_the_other_lane(
    process: ServerProcess, server: RemoteServer, name: str
) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    with Proxy.to(str(process.http)) as shaky:
        either = partition_stream(server, Ticket(name, 0), locations=[shaky.http, server.location])
        only = partition_stream(server, Ticket(name, 0), locations=[shaky.http], lane="bulk")
        batches = batches_from(only)
        assert next(batches_from(either)) == next(batches) == batch_of(0, 0)
        shaky.refuse()
        shaky.cut()
        with pytest.raises(BrokenStream, match="beyond frame 1"):
            next(batches)
        for frame in range(1, FRAMES):
            writer.write_batch(batch_of(0, frame))
        writer.close()
        assert read_all(either) == EVERYTHING[ROWS:]
        assert either.address.lane == "grpc"
        only.close()


def test_a_forked_child_of_a_process_that_used_grpc_may_use_the_bulk_lane(
    server: RemoteServer, name: str
) -> None:
    put(server, name)
    ticket, answer = ticket_of(server, name), bulk_answer(server, name)
    with HttpSource(answer) as source:
        # The parent leaves an idle connection behind, which the child must not touch.
        assert read_all(partition_stream(server, ticket, locations=[source.url])) == EVERYTHING
        gc.collect()  # what others have left is not the child's to destroy
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)  # a child that hangs must not stay
            try:
                whole = read_all(partition_stream(server, ticket, locations=[source.url])) == EVERYTHING
                os._exit(7 if whole else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert read_all(partition_stream(server, ticket, locations=[source.url])) == EVERYTHING
        assert source.connections == 2
