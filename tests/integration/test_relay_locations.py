"""A client cannot make the server connect to a place that its configuration does not list."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.raw_flight import RawFlight, Refused
from tests.support.server_process import ServerProcess


@pytest.fixture
def trap() -> Iterator[socket.socket]:
    """A listener that is to stay without a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener
        with pytest.raises(BlockingIOError):
            listener.accept()


def create(server: ServerProcess, location: str) -> Refused:
    with RawFlight(server.location) as raw, pytest.raises(Refused) as refused:
        raw.action(
            "create", {"dataset": "d", "kind": "source", "source": {"flight": location, "dataset": "d"}}
        )
    return refused.value


def test_a_server_connects_nowhere_by_default(
    flight_server_process: Callable[..., ServerProcess], trap: socket.socket
) -> None:
    location = f"grpc://127.0.0.1:{trap.getsockname()[1]}"
    error = create(flight_server_process(), location)
    assert error.status == "PERMISSION_DENIED"
    assert f"--source-flight {location}" in error.message


def test_a_server_connects_to_what_is_listed_and_nowhere_else(
    flight_server_process: Callable[..., ServerProcess], trap: socket.socket
) -> None:
    port = trap.getsockname()[1]
    upstream = flight_server_process()
    server = flight_server_process(
        *("--source-flight", upstream.location, "--source-flight", f"grpc+tls://127.0.0.1:{port}"),
        *("--source-flight", f"localhost.example:{port}"),
    )
    assert create(server, upstream.location).status == "NOT_FOUND"
    for location in (
        f"grpc://127.0.0.1:{port}",
        f"grpc+tcp://127.0.0.1:{port}",
        f"grpc://localhost:{port}",
        f"grpc+tls://localhost:{port}",
        f"grpc://[::ffff:127.0.0.1]:{port}",
        f"grpc://127.1:{port}",
        f"grpc://2130706433:{port}",
    ):
        assert create(server, location).status == "PERMISSION_DENIED"
    for location in (f"http://127.0.0.1:{port}", f"{upstream.location}@127.0.0.1:{port}"):
        assert create(server, location).status == "INVALID_ARGUMENT"


def test_an_upstream_cannot_send_a_relay_elsewhere(
    flight_server_process: Callable[..., ServerProcess], trap: socket.socket
) -> None:
    class Upstream(flight.FlightServerBase):
        def get_flight_info(self, context: Any, descriptor: Any) -> Any:
            elsewhere = f"grpc://127.0.0.1:{trap.getsockname()[1]}"
            endpoint = flight.FlightEndpoint(b"d", [elsewhere])
            return flight.FlightInfo(pa.schema([("n", pa.int8())]), descriptor, [endpoint], -1, -1)

    server = flight_server_process(source_flight="127.0.0.1")
    with Upstream("grpc://127.0.0.1:0") as upstream:
        error = create(server, f"grpc://127.0.0.1:{upstream.port}")
    assert error.status == "INVALID_ARGUMENT"
    assert "can be read only at" in error.message
