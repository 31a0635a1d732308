"""Which clients a program shares, and which of them end at a later call."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from spark_client.settings import open_client, open_clients

SPARK: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda _: "app-1"))


class Client:
    """As a ShuffleClient with an embedded server, which is a process of its own."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        self._server = server
        self.closes = 0

    @property
    def closed(self) -> bool:
        return self._server.poll() is not None

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(open_clients, "_clients", {})
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_forked_child_makes_a_client_of_its_own_and_ends_none_of_its_parent(server: Any) -> None:
    client = Client(server)
    open_client(SPARK, {}, lambda: client)
    child = os.fork()
    if not child:
        # A child is not told of its parent's children: to it they have ended.
        own = open_client(SPARK, {}, lambda: Client(server))
        os._exit(client.closes if own is not client else 9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert open_client(SPARK, {}, lambda: Client(server)) is client
