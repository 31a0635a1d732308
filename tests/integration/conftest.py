"""A server of a module, connections to it, and servers whose disks fail: for files that want nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from tests.support.faulty_disk import FaultyServer
from tests.support.ram_directory import ram_directory
from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """One for the module, with the options that its ``SERVER_OPTIONS`` name: each test uses names of its own."""
    with ServerProcess.start(**getattr(request.module, "SERVER_OPTIONS", {})) as running:
        yield running
        assert running.terminate() == 0, running.tail()
        assert running.events("internal_error") == [], running.tail()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(server.location) as connected:
        yield connected


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawFlight]:
    with RawFlight(server.location) as connected:
        yield connected


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
