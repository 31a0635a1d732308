"""Broadcasts that pass from host to host: each host is a server, as an executor's is, and a directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import COPIES, CopiesRequest, CopyVerb, InvalidRequest
from spark_client import Broadcast, Copies, ShuffleClient
from spark_client.broadcast import broadcast_copies
from spark_client.broadcast import content as broadcast_content
from spark_client.broadcast.content import BroadcastContent
from spark_client.executors import ExecutorServers
from spark_client.executors.executor_servers import RunningServers
from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess

TOKEN = "secret-of-the-application"
TABLE = pa.table({"id": np.arange(600_000), "word": ["word"] * 600_000})


@dataclass(frozen=True)
class Servers(ExecutorServers):
    """Of one executor, whose server the test has started; of no executor without one."""

    running: ServerProcess | None = None

    def here(self, tries: int = 0) -> RunningServers:
        if self.running is None:
            raise InvalidRequest("this process is no Python worker of a Spark executor")
        return RunningServers((self.running.location,), self.running.pid, 0)


@pytest.fixture
def start(
    flight_server_process: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ServerProcess]:
    monkeypatch.setattr(broadcast_content, "TREE_BYTES", 0)
    return lambda **options: flight_server_process(token=TOKEN, source_flight="*", **options)


@pytest.fixture
def origin(start: Callable[..., ServerProcess]) -> ServerProcess:
    return start()


@pytest.fixture
def client(origin: ServerProcess, tmp_path: Path) -> Iterator[ShuffleClient]:
    with ShuffleClient(origin.location, token=TOKEN, copies=Copies((str(tmp_path / "driver"),))) as found:
        yield found


def on_host(
    shared: Broadcast, base: Path, running: ServerProcess | None, token: str = TOKEN
) -> BroadcastContent:
    """The content as a task on another host has it, whose directory is ``base``."""
    return replace(shared._content, copies=Copies((str(base),)), servers=Servers(token, "", running=running))


def table_of(content: BroadcastContent) -> pa.Table:
    file = broadcast_copies.open_file(content)
    try:
        return content.map(file)
    finally:
        file.close()


def statistics(server: ServerProcess) -> dict[str, Any]:
    with RawFlight(server.location, token=TOKEN) as raw:
        return dict(raw.action("statistics", {}))


def ask(shared: Broadcast, verb: CopyVerb, host: str) -> None:
    source, file = shared._content.source, shared._content.key
    request = CopiesRequest(verb, source.dataset, source.generation, host, file)
    source.server.action(COPIES, request.encode())


def test_hosts_read_from_each_other_while_the_broadcasts_server_sends_to_two(
    client: ShuffleClient, origin: ServerProcess, start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    shared = client.broadcast(TABLE)
    frames = statistics(origin)["frames_in"]
    assert frames > 1
    for busy in ("x", "y"):
        ask(shared, CopyVerb.KEEP, busy)
        ask(shared, CopyVerb.FETCH, busy)
    hosts = [start() for _ in range(4)]
    for number, running in enumerate(hosts):
        found = table_of(on_host(shared, tmp_path / str(number), running))
        assert found.equals(TABLE)
    sent = [statistics(each)["frames_out"] // frames for each in (origin, *hosts)]
    assert sent[0] == 1, "to the first, because no host has a place"
    assert sum(sent) == 2 * len(hosts), "to each host's server, and to its task"


def test_hosts_without_a_server_read_from_that_of_the_broadcast(
    client: ShuffleClient, origin: ServerProcess, start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    shared = client.broadcast(TABLE)
    frames = statistics(origin)["frames_in"]
    ended = start()
    ended.kill()
    for number, running in enumerate((None, ended, origin)):
        assert table_of(on_host(shared, tmp_path / str(number), running)).equals(TABLE)
    assert statistics(origin)["frames_out"] == 3 * frames


def test_what_is_left_when_the_hosts_server_ends_comes_from_that_of_the_broadcast(
    client: ShuffleClient, start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    content = on_host(client.broadcast(TABLE), tmp_path, running := start())
    arriving = broadcast_content.bursts(content.source, content.servers, "host", content.key)
    batches = next(arriving).batches
    running.kill()
    for burst in arriving:
        batches += burst.batches
    assert pa.Table.from_batches(batches).equals(TABLE)


def test_nothing_passes_through_servers_that_have_another_token(
    client: ShuffleClient, flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    other = flight_server_process(source_flight="*")
    content = on_host(client.broadcast(TABLE), tmp_path, other, "another")
    assert table_of(content).equals(TABLE)
    assert statistics(other)["datasets"] == {}
