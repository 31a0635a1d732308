"""With a token every RPC needs it: as a bearer header, or from a handshake with basic credentials."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.raw_flight import RawFlight, Refused, path, put_messages
from tests.support.server_process import ServerProcess

TOKEN = "a token, with spaces & signs"
BATCH = pa.record_batch({"n": [1]})


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    environment = {"FLIGHT_SERVER_TOKEN": TOKEN}
    with ServerProcess.start(http_port=-1, memory_limit="64MiB", environment=environment) as server:
        with RawFlight(server.location, token=TOKEN) as raw:
            raw.put(put_messages(path("d"), [BATCH]))
        yield server
    assert TOKEN not in "\n".join(server.log)


def test_pyarrow_gets_the_bearer_header_by_a_handshake(server: ServerProcess) -> None:
    with flight.connect(server.location) as client:
        header = client.authenticate_basic_token("anybody", TOKEN)
        assert header == (b"authorization", b"Bearer " + TOKEN.encode())
        options = flight.FlightCallOptions(headers=[header])
        assert client.do_get(flight.Ticket(b"d"), options).read_all().num_rows == 1


def test_a_handshake_with_another_password_is_refused(server: ServerProcess) -> None:
    with flight.connect(server.location) as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="not this server's"):
            client.authenticate_basic_token("anybody", "wrong")
        with pytest.raises(flight.FlightUnauthenticatedError, match="wants a token") as caught:
            list(client.list_flights())
    assert b'"error":"unauthenticated"' in caught.value.extra_info


def test_a_handshake_without_a_message_is_told_what_is_wanted(server: ServerProcess) -> None:
    with RawFlight(server.location) as raw, pytest.raises(Refused, match="wants a token"):
        raw.ask("Handshake", iter([]))


MALFORMED = [
    b"Authorization: Bearer S3CR3T\0x",
    b"Authorization: Bearer S3CR3T\x01",
    b"Authorization : Bearer S3CR3T",
    b"Authorization: Bearer S3CR3T\nX",
    b"Authorization: Bearer " + 5000 * b"S3CR3T",
    b"Authorization\xff: Bearer S3CR3T",
    b"Authorization: Basic S3CR3T",
    b"Authorization: S3CR3T",
    b"Bearer S3CR3T",
]


def test_a_malformed_header_is_repeated_neither_in_the_answer_nor_in_the_log(
    flight_server_process: Any,
) -> None:
    server = flight_server_process(memory_limit="64MiB", log_level="debug", token=TOKEN)
    host, _, port = server.http.partition("://")[2].rpartition(":")
    before, after = b"GET /v1/why HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", b"\r\n\r\n"
    for request in [before + head + after for head in MALFORMED] + [MALFORMED[0] + after]:
        with (
            socket.create_connection((host, int(port)), 30) as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(request)
            said = answer.read()
        assert said.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 401 "))
        assert b"S3CR3T" not in said
    assert server.terminate() == 0
    assert len(server.events("malformed_request")) == len(MALFORMED) - 1
    assert "S3CR3T" not in server.tail(10_000)
