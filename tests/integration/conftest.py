"""A server of a module, connections to it, and servers whose disks fail: for files that want nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from spark_client import Changelog, Reading, ShuffleClient, Writing, latest
from tests.support.faulty_disk import FaultyServer
from tests.support.polling import eventually
from tests.support.ram_directory import ram_directory
from tests.support.rates import BY, MOST_LANES, RATES
from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess
from tests.support.spread import spread


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """One for the module, with the options that its ``SERVER_OPTIONS`` name: each test uses names of its own."""
    with ServerProcess.start(**getattr(request.module, "SERVER_OPTIONS", {})) as running:
        yield running
        assert running.terminate() == 0, running.tail()
        assert running.events("internal_error") == [], running.tail()


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerProcess]]:
    """Three for the module, which know nothing of each other."""
    with ServerProcess.start() as one, ServerProcess.start() as two, ServerProcess.start() as three:
        yield [one, two, three]


@pytest.fixture(scope="module")
def listed(servers: Sequence[ServerProcess]) -> list[dict[str, Any]]:
    """Dataset ``d``, spread over the three; its parts."""
    return spread("d", servers)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(server.location) as connected:
        yield connected


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawFlight]:
    with RawFlight(server.location) as connected:
        yield connected


@pytest.fixture
def spotless(raw: RawFlight) -> Iterator[None]:
    """Afterwards no stream waits, and when the datasets are dropped not one byte is left."""
    yield
    eventually(lambda: raw.action("why")["waits"], [])
    for name in raw.action("statistics")["datasets"]:
        raw.action("drop", {"dataset": name})
    eventually(lambda: raw.action("statistics")["memory"]["used_bytes"], 0)


@pytest.fixture(params=MOST_LANES)
def shuffle(request: pytest.FixtureRequest, empty_server: ServerProcess) -> Iterator[ShuffleClient]:
    """A client of each lane."""
    lane = request.param
    with ShuffleClient(empty_server.location, reading=Reading(lane=lane), writing=Writing(lane=lane)) as made:
        yield made


@pytest.fixture
def rates(shuffle: ShuffleClient) -> Changelog:
    """The latest rate of each currency; what is not kept any more can still come back for an hour."""
    return shuffle.changelog("rates", RATES, keep=latest(), delay_seconds=3600.0, **BY)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """In memory: a killed process loses nothing of it."""
    with ram_directory() as path:
        yield path / "data"


@pytest.fixture
def faulty_server() -> Iterator[Callable[..., FaultyServer]]:
    """``FaultyServer.start``; what it has started ends with the test."""
    started: list[FaultyServer] = []

    def start(data_dir: Path, **options: Any) -> FaultyServer:
        started.append(FaultyServer.start(data_dir, **options))
        return started[-1]

    yield start
    for server in started:
        server.close()
