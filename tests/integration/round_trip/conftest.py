"""One server for all round trips, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyarrow import flight

from tests.integration.round_trip.flights import drop
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="package")
def server() -> Iterator[ServerProcess]:
    with ServerProcess.start(http_port=-1, memory_limit="1GiB", max_message="128MiB") as server:
        yield server
    assert server.events("internal_error") == []


@pytest.fixture(scope="package")
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(server.location) as client:
        yield client


@pytest.fixture
def name(client: flight.FlightClient) -> Iterator[str]:
    """The name of a dataset that is dropped afterwards."""
    yield "d"
    drop(client, "d")
