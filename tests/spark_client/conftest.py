"""A client of a server without datasets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_client import ShuffleClient
from tests.support.server_process import ServerProcess


@pytest.fixture
def client(empty_server: ServerProcess) -> Iterator[ShuffleClient]:
    with ShuffleClient(empty_server.location) as connected:
        yield connected
