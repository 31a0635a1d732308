"""What many tests of the server begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from pyarrow import flight

from flight_server.datasets.catalogue import Catalogue
from flight_server.node import Node
from tests.support.catalogues import new_catalogue
from tests.support.clocks import Clock
from tests.support.nodes import running_node
from tests.support.ram_directory import ram_directory
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for the whole module: each test uses names of its own."""
    with ServerProcess.start(memory_limit="64MiB") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(server.location) as made:
        yield made


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as made:
        yield made


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    with closing(new_catalogue(tmp_path, 64 << 20)) as made:
        yield made
    assert made.budget.memory.used_bytes == 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory on a disk that needs no time."""
    with ram_directory() as path:
        yield path
