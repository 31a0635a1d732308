"""One server for all tests of a file, and for each test a name, a client, and a client behind a proxy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from spark_client.connection import RemoteServer
from tests.support.merging import QUICK
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess.start() as started:
        yield started


@pytest.fixture
def server(process: ServerProcess) -> Iterator[RemoteServer]:
    made = RemoteServer(process.location, timeouts=QUICK)
    yield made
    made.close()


@pytest.fixture
def proxy(process: ServerProcess) -> Iterator[Proxy]:
    with Proxy.to(process.location) as made:
        yield made


@pytest.fixture
def through(proxy: Proxy) -> Iterator[RemoteServer]:
    made = RemoteServer(proxy.location, timeouts=QUICK)
    yield made
    made.close()


_names = itertools.count()


@pytest.fixture
def name() -> str:
    return f"merge/n{next(_names)}"
