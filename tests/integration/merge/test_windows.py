"""Small HTTP/2 windows and a stream that is not read, with a client that is not gRPC's.

The client is the `h2` package over a plain socket. As HTTP/2 allows, it returns received bytes to the connection's
window at once, and to the stream's window only when the stream is read. So an unread stream stops at its own 65,535
bytes, and the server must go on sending the others.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Self

import h2.config
import h2.connection
import h2.events
import pytest

from flight_server.protocol import AS_STORED, BATCHES_HEADER, FRAMES_TRAILER, ROWS_TRAILER, Ticket
from flight_server.protocol.wire import field
from spark_client.connection import RemoteServer
from tests.support.merging import ROWS, put_all

pytestmark = pytest.mark.usefixtures("hasty")

WINDOW_BYTES = 65_535
FRAMES = 60


class PlainClient:
    """DoGet over HTTP/2, one connection, windows of 65,535 bytes. Counts the gRPC messages of each stream."""

    def __init__(self, location: str) -> None:
        host, _, port = location.removeprefix("grpc://").rpartition(":")
        self._authority = f"{host}:{port}"
        self._sock = socket.create_connection((host, int(port)), 20)
        self._sock.settimeout(20)
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._http = h2.connection.H2Connection(config)
        self._http.initiate_connection()
        self._data: dict[int, bytearray] = {}
        self._owed_bytes: dict[int, int] = {}
        self._unread: set[int] = set()
        self.trailers: dict[int, dict[str, str]] = {}
        self._flush()

    def do_get(self, ticket: Ticket, *, read: bool = True) -> int:
        """Start a read; with ``read=False`` it stays unread until ``read_on``."""
        stream = int(self._http.get_next_available_stream_id())
        self._data[stream] = bytearray()
        self._owed_bytes[stream] = 0
        if not read:
            self._unread.add(stream)
        path = "/arrow.flight.protocol.FlightService/DoGet"
        self._http.send_headers(
            stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", self._authority),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                (BATCHES_HEADER, AS_STORED),
            ],
        )
        message = field(1, ticket.encode())
        self._http.send_data(stream, struct.pack(">BI", 0, len(message)) + message, end_stream=True)
        self._flush()
        return stream

    def read_on(self, stream: int) -> None:
        """Read the stream from now on."""
        self._unread.discard(stream)
        self._http.increment_flow_control_window(self._owed_bytes[stream], stream)
        self._flush()

    def run_until_ended(self, streams: list[int]) -> None:
        """Receive until all of these have ended; a silence of 20 seconds is an error."""
        while any(stream not in self.trailers for stream in streams):
            data = self._sock.recv(65_536)
            assert data, "the server closed the connection"
            for event in self._http.receive_data(data):
                self._handle(event)
            self._flush()

    def received_bytes(self, stream: int) -> int:
        return len(self._data[stream])

    def messages(self, stream: int) -> int:
        """How many whole gRPC messages have come."""
        data, position, count = self._data[stream], 0, 0
        while position + 5 <= len(data):
            (size,) = struct.unpack_from(">I", data, position + 1)
            position += 5 + size
            count += position <= len(data)
        return count

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            size_bytes = event.flow_controlled_length
            stream = event.stream_id
            assert stream is not None
            assert size_bytes is not None
            self._data[stream] += event.data or b""
            self._http.increment_flow_control_window(size_bytes)
            if stream in self._unread:
                self._owed_bytes[stream] += size_bytes
            else:
                # A stream that has just ended has no window any more.
                with contextlib.suppress(h2.exceptions.StreamClosedError):
                    self._http.increment_flow_control_window(size_bytes, stream)
        elif isinstance(event, h2.events.TrailersReceived):
            assert event.stream_id is not None
            pairs = event.headers or []
            self.trailers[event.stream_id] = {str(name): str(value) for name, value in pairs}

    def _flush(self) -> None:
        self._sock.sendall(self._http.data_to_send())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._sock.close()


def test_an_unread_stream_starves_no_sibling_and_is_whole_when_it_is_read_at_last(
    server: RemoteServer, name: str
) -> None:
    put_all(server, name, 5, frames=FRAMES)
    with PlainClient(server.location) as client:
        unread = client.do_get(Ticket(name, 0), read=False)
        siblings = [client.do_get(Ticket(name, i)) for i in range(1, 5)]
        client.run_until_ended(siblings)
        for stream in siblings:
            # The schema is a message too.
            assert client.messages(stream) == FRAMES + 1
        assert client.received_bytes(unread) <= WINDOW_BYTES
        assert unread not in client.trailers
        client.read_on(unread)
        client.run_until_ended([unread])
        assert client.messages(unread) == FRAMES + 1
        for stream in [unread, *siblings]:
            trailers = client.trailers[stream]
            assert trailers["grpc-status"] == "0"
            assert trailers[FRAMES_TRAILER] == str(FRAMES)
            assert trailers[ROWS_TRAILER] == str(FRAMES * ROWS)


def test_many_unread_streams_leave_the_last_one_its_way(server: RemoteServer, name: str) -> None:
    put_all(server, name, 31, frames=20)
    with PlainClient(server.location) as client:
        for i in range(30):
            client.do_get(Ticket(name, i), read=False)
        last = client.do_get(Ticket(name, 30))
        client.run_until_ended([last])
        assert client.messages(last) == 21
