"""Calls whose requests the test leaves open, on one HTTP/2 connection that is not gRPC's.

The test sends heads, and parts of messages, of as many calls as it likes, and sees how each call ends.
"""

from __future__ import annotations

import selectors
import socket
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from spark_client.connection import Closable

SERVICE = "arrow.flight.protocol.FlightService"
DEADLINE_SECONDS = 60.0
_READ_BYTES = 64 << 10


class OpenCalls(Closable):
    """One connection and its calls; also a context manager that closes it."""

    def __init__(self, location: str, *, token: str | None = None) -> None:
        host, _, port = location.partition("://")[2].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), DEADLINE_SECONDS)
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._connection.initiate_connection()
        self._head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", f"{host}:{port}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *([("authorization", f"Bearer {token}")] if token is not None else []),
        ]
        self.ended: dict[int, dict[str, str]] = {}
        """The trailers of each call that has ended; ``{"reset": code}`` for one that was reset."""
        self.answered: set[int] = set()
        """The calls whose initial metadata have come, or whose end."""
        self.closed = False
        self._flush()
        self.take()  # the server's settings

    def begin(self, method: str) -> int:
        """Send the head of a call of Arrow Flight, or of the whole path; the call's number."""
        call: int = self._connection.get_next_available_stream_id()
        where = method if method.startswith("/") else f"/{SERVICE}/{method}"
        self._connection.send_headers(call, [*self._head[:3], (":path", where), *self._head[3:]])
        self._flush()
        return call

    def send(self, call: int, data: bytes, *, end: bool = False) -> int:
        """Send as much of ``data`` as the server takes now; how many bytes that were."""
        sent = 0
        while sent < len(data) and call not in self.ended:
            room = min(
                self._connection.local_flow_control_window(call), self._connection.max_outbound_frame_size
            )
            if room <= 0:
                break
            part = data[sent : sent + room]
            sent += len(part)
            self._connection.send_data(call, part, end_stream=end and sent == len(data))
            self._flush()
        return sent

    def take(self, patience_seconds: float = 1.0) -> bool:
        """Take what has come, or comes within ``patience_seconds``; False if nothing came."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            if self.closed or not selector.select(patience_seconds):
                return False
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        self.closed = not data
        for event in self._connection.receive_data(data):
            self._note(event)
        if not self.closed:
            self._flush()
        return True

    def wait_for_end(self, *calls: int) -> None:
        """Return when all these calls have ended."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.ended.keys() >= set(calls):
            assert time.monotonic() < deadline, "the server has not ended the calls"
            assert not self.closed, "the server has closed the connection"
            self.take()

    def _note(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self.answered.add(event.stream_id)
                if event.stream_ended is not None:  # a call that fails at once is answered by trailers alone
                    self._end(event.stream_id, event.headers)
            case h2.events.TrailersReceived():
                self._end(event.stream_id, event.headers)
            case h2.events.StreamReset():
                self.ended.setdefault(event.stream_id, {"reset": str(int(event.error_code))})
            case h2.events.DataReceived():
                self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def _end(self, call: int, headers: object) -> None:
        self.ended[call] = {str(key): str(value) for key, value in headers}  # type: ignore[attr-defined]
        self.answered.add(call)

    def close(self) -> None:
        self._socket.close()

    def _flush(self) -> None:
        if data := self._connection.data_to_send():
            self._socket.sendall(data)


def begun_message(size_bytes: int, part: bytes = b"") -> bytes:
    """The head of a gRPC message of ``size_bytes`` and its first part."""
    return b"\0" + size_bytes.to_bytes(4, "big") + part
