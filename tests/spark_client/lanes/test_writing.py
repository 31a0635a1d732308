"""Which lane a put takes, and that it sends nothing to a place that it does not take."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from flight_server.protocol import PutCommand
from flight_server.protocol.errors import Draining, Forbidden, InvalidRequest, NotFound, Unauthenticated
from spark_client.connection import Compression, LaneChoice, RemoteServer, Timeouts, Unreachable, Writing
from spark_client.lanes import put_stream
from spark_client.lanes.bulk_put import BulkWriter
from spark_client.lanes.grpc_put import GrpcWriter
from spark_client.lanes.http import NoBulkLane
from spark_client.lanes.lane import BrokenStream
from spark_client.lanes.put_stream import PutStream
from tests.support.forked_child import in_child
from tests.support.put_source import UPGRADED, PutSide, PutSource
from tests.support.server_process import ServerProcess

NOWHERE = "grpc://127.0.0.1:1"
QUICK = Timeouts(connect_seconds=20, first_message_seconds=20, stall_seconds=20, tries=1)
BATCH = pa.record_batch({"n": [1, 2, 3]})


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess.start(http_port=0) as found:
        yield found


@pytest.fixture
def connect(process: ServerProcess) -> Iterator[Callable[..., RemoteServer]]:
    made: list[RemoteServer] = []

    def new(lane: LaneChoice, timeouts: Timeouts = QUICK) -> RemoteServer:
        made.append(RemoteServer(process.location, timeouts=timeouts, writing=Writing(lane)))
        return made[-1]

    yield new
    for server in made:
        server.close()


def lane_of(stream: PutStream) -> str:
    assert isinstance(stream._writing, BulkWriter | GrpcWriter)
    return "bulk" if isinstance(stream._writing, BulkWriter) else "grpc"


def put(server: RemoteServer, places: list[str] | None = None) -> str:
    """Put a dataset, read back how many rows it has, and drop it; the lane that was taken."""
    command = PutCommand("d", producer=0, attempt="1")
    with PutStream(server, command, BATCH.schema, places) as stream:
        stream.write(BATCH)
        stream.commit()
    try:
        assert server.flight_info("d").total_records == 3
    finally:
        server.action("drop", {"dataset": "d"})
    return lane_of(stream)


@pytest.mark.parametrize(("lane", "taken"), [("auto", "bulk"), ("bulk", "bulk"), ("grpc", "grpc")])
def test_the_bulk_lane_is_taken_unless_grpc_is_asked_for(
    connect: Callable[[LaneChoice], RemoteServer], lane: LaneChoice, taken: str
) -> None:
    server = connect(lane)
    assert [put(server), put(server)] == [taken, taken]


def test_a_server_without_the_lane_gets_its_puts_by_grpc(
    flight_server_process: Callable[..., ServerProcess],
) -> None:
    location = flight_server_process(http_port=-1).location
    server, strict = RemoteServer(location), RemoteServer(location, writing=Writing("bulk"))
    assert put(server) == "grpc"
    with pytest.raises(InvalidRequest, match="names no place for puts on the bulk lane: use lane='auto'"):
        put(strict)
    server.close()
    strict.close()


OTHERS: dict[str, bytes] = {
    "a server that was not passed the upgrade": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nonly",
    "a website": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhome",
    "a proxy without its server": b"HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another upgrade": UPGRADED.replace(b"flight-put", b"websocket"),
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "half an answer": UPGRADED[:-3],
    "nobody": b"",
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_place_that_does_not_speak_the_lane_sends_the_put_to_grpc_and_is_left_alone(
    connect: Callable[[LaneChoice], RemoteServer], case: str
) -> None:
    rest: list[bytes] = []

    def serve(side: PutSide) -> None:
        side.send(OTHERS[case])
        # The client may be gone by then, which is as good.
        with contextlib.suppress(OSError):
            side.sock.shutdown(socket.SHUT_WR)
            rest.append(side.sock.recv(100))

    with PutSource(serve) as source:
        server = connect("auto")
        assert [put(server, [source.place]) for _ in range(3)] == ["grpc"] * 3
        assert len(source.heads) == 1
        with pytest.raises((NoBulkLane, Unreachable)):
            put(connect("bulk"), [source.place])
    assert b"".join(rest) == b"", "nothing of the put was sent"


def test_a_place_that_does_not_answer_sends_the_put_to_grpc(connect: Callable[..., RemoteServer]) -> None:
    impatient = replace(QUICK, first_message_seconds=0.5)
    with PutSource(PutSide.broken_off) as source:
        assert put(connect("auto", impatient), [source.place]) == "grpc"


def test_a_place_that_refuses_connections_sends_the_put_to_the_next_or_to_grpc(
    connect: Callable[[LaneChoice], RemoteServer], process: ServerProcess
) -> None:
    closed = "http://127.0.0.1:3/v1/put"
    assert put(connect("auto"), [closed]) == "grpc"
    with pytest.raises(Unreachable, match="refused"):
        put(connect("bulk"), [closed])
    assert put(connect("bulk"), [closed, f"{process.http}/v1/put"]) == "bulk"


@pytest.mark.parametrize("compression", [None, "auto"])
def test_a_put_that_no_lane_takes_says_what_each_ended_with(compression: Compression) -> None:
    place = "http://127.0.0.1:2/v1/put"
    command = PutCommand("d", producer=0, attempt="1")
    with contextlib.closing(RemoteServer(NOWHERE, timeouts=QUICK)) as server:
        with (
            pytest.raises(
                Unreachable, match=r"no server answers at grpc://127\.0\.0\.1:1: .*; before, one try at"
            ) as raised,
            PutStream(server, command, BATCH.schema, [place], compression) as stream,
        ):
            stream.write(BATCH)
        assert f"one try at {place}: the connection failed: [Errno 111]" in str(raised.value)


def test_a_server_that_has_moved_is_asked_again(
    connect: Callable[[LaneChoice], RemoteServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = connect("auto")
    put_stream._known(server).places = ("http://127.0.0.1:4/v1/put",)
    assert put(server) == "grpc"
    assert put(server) == "bulk"


@pytest.mark.parametrize(
    ("head", "error", "raised"),
    [
        (b"401 Unauthorized", Unauthenticated("who is it?"), Unauthenticated),
        (b"403 Forbidden", Forbidden("not you"), Forbidden),
        (b"503 Service Unavailable", Draining("going down"), Draining),
        (b"401 Unauthorized", None, Unauthenticated),
        (b"403 Forbidden", None, Forbidden),
    ],
)
def test_what_the_server_itself_refuses_is_its_error_and_no_other_lane_is_tried(
    connect: Callable[[LaneChoice], RemoteServer],
    head: bytes,
    error: Exception | None,
    raised: type[Exception],
) -> None:
    body = b"go away" if error is None else error.to_json().encode()  # type: ignore[attr-defined]

    def serve(side: PutSide) -> None:
        side.send(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (head, len(body), body))

    with PutSource(serve) as source:
        server = connect("auto")
        for _ in range(2):
            with pytest.raises(raised):
                put(server, [source.place])
        assert len(source.heads) == 2


def test_a_put_that_has_begun_is_never_tried_on_the_other_lane(
    connect: Callable[[LaneChoice], RemoteServer],
) -> None:
    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        side.messages()

    with PutSource(serve) as source:
        server = connect("auto")
        for _ in range(2):
            with pytest.raises(Exception, match="broke off"):
                put(server, [source.place])
        assert len(source.heads) == 2
        with pytest.raises(NotFound):
            server.flight_info("d")


def test_a_forked_child_of_a_process_that_used_grpc_may_put_to_a_place_that_it_knows(
    connect: Callable[[LaneChoice], RemoteServer], process: ServerProcess
) -> None:
    server = connect("auto")
    (place,) = put_stream.places_of(server)

    def child() -> None:
        with PutStream(server, PutCommand("d", producer=0, attempt="1"), BATCH.schema, [place]) as stream:
            stream.write(BATCH)
            assert stream.commit()["rows"] == 3

    in_child(child)
    assert server.flight_info("d").total_records == 3
    server.action("drop", {"dataset": "d"})


@pytest.mark.parametrize(
    ("lane", "step"),
    [("grpc", "open"), ("grpc", "write"), ("bulk", "write"), ("bulk", "commit"), ("auto", "open")],
)
def test_a_put_to_a_server_that_has_died_raises_an_error_with_its_address_at_each_step(
    lane: LaneChoice, step: str
) -> None:
    def put_while_it_dies() -> None:
        if step == "open":
            process.kill()
        # With "auto" the call of the gRPC lane begins with the first batch.
        with PutStream(server, PutCommand("d"), BATCH.schema, places, "auto") as stream:
            if step == "write":
                process.kill()
            for _ in range(100):
                stream.write(BATCH)
            if step == "commit":
                process.kill()
            stream.commit()

    with ServerProcess.start(http_port=0) as process:
        server = RemoteServer(process.location, timeouts=QUICK, writing=Writing(lane))
        places = put_stream.places_of(server)
        with contextlib.closing(server), pytest.raises((Unreachable, BrokenStream)) as caught:
            put_while_it_dies()
    assert "127.0.0.1:" in str(caught.value)
    assert "127.0.0.1:" in caught.value.detail["server"]
