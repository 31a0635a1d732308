"""DoGet asked for with an HTTP/2 implementation that is not gRPC's, with the protocol's smallest windows.

Here the test decides when each stream and the connection get room, byte by byte: so it can leave a stream
unread for ever, on the connection on which it reads others.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import FRAMES_TRAILER, ROWS_TRAILER, Ticket
from tests.support.durable import action, put
from tests.support.polling import eventually
from tests.support.raw_flight import BODY, HEADER, field, fields_of
from tests.support.server_process import ServerProcess

WINDOW_BYTES = 65_535
DEADLINE_SECONDS = 60.0
_READ_BYTES = 64 << 10


class H2Reader:
    """One HTTP/2 connection and the DoGet streams on it; also a context manager."""

    def __init__(self, location: str) -> None:
        host, _, port = location.removeprefix("grpc://").rpartition(":")
        self._authority = f"{host}:{port}"
        self._socket = socket.create_connection((host, int(port)), DEADLINE_SECONDS)
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._connection.initiate_connection()
        self.received: dict[int, bytearray] = defaultdict(bytearray)
        self.trailers: dict[int, dict[str, str]] = {}
        # These streams are not read, so their windows are not given back.
        self.unread: set[int] = set()
        self._flush()

    def do_get(self, dataset: str, partition: int = 0) -> int:
        """Ask for a partition; the stream's number."""
        stream: int = self._connection.get_next_available_stream_id()
        self._connection.send_headers(
            stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":authority", self._authority),
                (":path", "/arrow.flight.protocol.FlightService/DoGet"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            ],
        )
        message = field(1, Ticket(dataset, partition).encode())
        self._connection.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
        self._flush()
        return stream

    def read_on(self, stream: int) -> None:
        """Read a stream that was left unread, whose window is full, from now on."""
        self.unread.discard(stream)
        self._connection.increment_flow_control_window(WINDOW_BYTES, stream)
        self._flush()

    def read_until(self, done: Callable[[], bool]) -> None:
        """Take what comes, and give its room back, except to streams that are left unread."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not done():
            assert time.monotonic() < deadline, "what was waited for did not come"
            data = self._socket.recv(_READ_BYTES)
            assert data, "the server closed the connection"
            for event in self._connection.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self._take(event)
                elif isinstance(event, h2.events.TrailersReceived) or (
                    # A call that fails at once is answered by trailers alone.
                    isinstance(event, h2.events.ResponseReceived) and event.stream_ended is not None
                ):
                    self.trailers[event.stream_id] = {str(key): str(value) for key, value in event.headers}
            self._flush()

    def _take(self, event: h2.events.DataReceived) -> None:
        stream, size_bytes = event.stream_id, event.flow_controlled_length
        self.received[stream] += event.data
        # The connection's window goes back in any case: without it a client would starve itself.
        if size_bytes:
            self._connection.increment_flow_control_window(size_bytes)
            if stream not in self.unread:
                with contextlib.suppress(h2.exceptions.StreamClosedError):  # its end came in the same packet
                    self._connection.increment_flow_control_window(size_bytes, stream)

    def table(self, stream: int) -> pa.Table:
        """What the stream brought, whole."""
        parts = []
        for message in _messages(bytes(self.received[stream])):
            fields = fields_of(message)
            header = fields[HEADER] + b"\0" * (-len(fields[HEADER]) % 8)
            parts += [b"\xff\xff\xff\xff", len(header).to_bytes(4, "little"), header, fields.get(BODY, b"")]
        return pa.ipc.open_stream(b"".join(parts)).read_all()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _flush(self) -> None:
        self._socket.sendall(self._connection.data_to_send())


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        assert data[at] == 0, "a compressed message"
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        yield data[at + 5 : at + 5 + size]
        at += 5 + size
    assert at == len(data), "the last message is cut"


def noise(mebibytes: int) -> pa.Table:
    values = np.random.default_rng(mebibytes).integers(0, 1 << 60, mebibytes << 17)
    return pa.table({"n": pa.array(values)})


@pytest.fixture
def server(flight_server_process: Callable[..., ServerProcess]) -> ServerProcess:
    return flight_server_process(memory_limit="64MiB", http_port=-1, stall_seconds=2)


def test_an_unread_stream_starves_none_of_its_siblings_and_is_whole_when_it_is_read_at_last(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    data = noise(4)
    put(client, data, chunk_rows=16 << 10, dataset="d")
    with H2Reader(server.location) as reader:
        unread = reader.do_get("d")
        reader.unread.add(unread)
        # Its window is full before the others begin.
        reader.read_until(lambda: len(reader.received[unread]) == WINDOW_BYTES)
        siblings = [reader.do_get("d") for _ in range(8)]
        reader.read_until(lambda: all(stream in reader.trailers for stream in siblings))
        for stream in siblings:
            assert reader.table(stream) == data
            assert reader.trailers[stream]["grpc-status"] == "0"
            assert reader.trailers[stream][ROWS_TRAILER] == str(data.num_rows)
            assert reader.trailers[stream][FRAMES_TRAILER] == "32"
        assert len(reader.received[unread]) == WINDOW_BYTES
        assert unread not in reader.trailers
        reader.read_on(unread)
        reader.read_until(lambda: unread in reader.trailers)
        assert reader.table(unread) == data
        assert reader.trailers[unread]["grpc-status"] == "0"


@pytest.mark.long
def test_many_unread_streams_hold_bounded_memory_and_end_with_their_connection(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    data = noise(4)
    put(client, data, chunk_rows=16 << 10, dataset="d")
    with H2Reader(server.location) as reader:
        reader.unread.update(reader.do_get("d") for _ in range(32))
        reader.read_until(
            lambda: all(len(reader.received[stream]) == WINDOW_BYTES for stream in reader.unread)
        )
        last = reader.do_get("d")
        reader.read_until(lambda: last in reader.trailers)
        assert reader.table(last) == data
        assert action(client, "statistics")["memory"]["peak_bytes"] <= 64 << 20

    def held() -> tuple[int, int]:
        statistics = action(client, "statistics")
        readers = statistics["datasets"]["d"]["readers"]
        return statistics["memory"]["accounts"]["sends"]["used_bytes"], readers

    eventually(held, (0, 0))


def test_errors_come_in_the_trailers(server: ServerProcess) -> None:
    with H2Reader(server.location) as reader:
        stream = reader.do_get("none")
        reader.read_until(lambda: stream in reader.trailers)
        assert reader.trailers[stream]["grpc-status"] == "5"
        assert '"error":"not_found"' in reader.trailers[stream]["x-flight-shuffle-error"]
