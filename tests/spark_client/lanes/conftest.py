"""The client's side of a server at whose address none listens: tests say where its lanes are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_client.connection import RemoteServer, Timeouts, Writing

QUICK = Timeouts(connect_seconds=20, first_message_seconds=20, stall_seconds=20, tries=3)


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    made = RemoteServer("grpc://127.0.0.1:1", timeouts=QUICK, token="secret", writing=Writing("bulk"))
    yield made
    made.close()
