"""The embedded server starts, says why when it does not, and never outlives its driver."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.config import Settings
from flight_server.protocol import Ticket
from flight_server.protocol.errors import InvalidRequest, Unauthenticated
from spark_client import ShuffleClient
from spark_client.connection import EmbeddedEnded, Timeouts, embedded
from tests.support.merging import partition_stream
from tests.support.polling import eventually
from tests.support.processes import runs, wait_for_end
from tests.support.rooms import ROOT

pytestmark = pytest.mark.usefixtures("hasty")


def test_a_client_with_a_server_of_its_own_puts_and_gets_and_ends_it_and_nothing_waits_for_it_then() -> None:
    table = pa.table({"x": [1, 2, 3]})
    client = ShuffleClient.embedded(memory_limit="256MiB", timeouts=Timeouts(tries=1_000_000))
    assert client.location.startswith("grpc://127.0.0.1:")
    assert client.statistics()["memory"]["limit_bytes"] == 256 << 20
    client.put("d", table)
    assert client.get("d").read_all().equals(table)
    process = client._embedded
    assert process is not None
    server = pickle.loads(pickle.dumps(client._open()))
    server.schema("d")
    client.close()
    assert not runs(process.pid)
    client.close()
    with pytest.raises(EmbeddedEnded):
        server.schema("d")
    with pytest.raises(EmbeddedEnded):
        partition_stream(server, Ticket("d", 0), lane="grpc").read_burst()


def test_a_close_ends_the_server_also_where_dropping_what_the_client_holds_raises() -> None:
    def failing() -> None:
        raise OSError("the disk is gone")

    client: Any = ShuffleClient.embedded()
    process = client._embedded
    client._shuffles = SimpleNamespace(close=failing)
    with pytest.raises(OSError, match="the disk is gone"):
        client.close()
    assert not runs(process.pid)
    client.close()


class ConnectSession:
    """A session of Spark Connect that counts the sources which are registered in it."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self) -> None:
        self.registered = 0
        self.dataSource = SimpleNamespace(register=self._register)

    def _register(self, source: Any) -> None:
        self.registered += 1


def test_a_close_asks_nothing_of_spark_connect_whose_server_may_be_gone() -> None:
    session: Any = ConnectSession()
    with ShuffleClient.embedded(workers=2) as client:
        client.register(session)
    assert session.registered == 1


def test_several_servers_share_the_memory_and_the_names_and_end_together_also_one_that_was_killed() -> None:
    table = pa.table({"x": [1, 2, 3]})
    with ShuffleClient.embedded(workers=2, memory_limit="512MiB") as client:
        first, second = client.location.split(",")
        assert client.statistics()["memory"]["limit_bytes"] == 512 << 20
        names = [f"d{number}" for number in range(16)]
        for name in names:
            client.put(name, table)
        assert all(client.get(name).read_all().equals(table) for name in names)
        found = client.statistics()["servers"]
        assert {each["location"] for each in found} == {first, second}
        assert all(each["datasets"] for each in found)
        assert {each["memory_limit_bytes"] for each in found} == {256 << 20}
        with ShuffleClient(first) as stranger, pytest.raises(Unauthenticated):
            stranger.datasets()
        process = client._embedded
        assert process is not None
        starts = {each["start"] for each in found}
        supervisor = psutil.Process(process.pid)
        supervisor.children()[0].kill()

        def others() -> int:
            return len({each["start"] for each in client.statistics()["servers"]} - starts - {None})

        eventually(others, 1)
        assert sorted(process.locations) == sorted(
            each["location"] for each in client.statistics()["servers"]
        )
        pids = [process.pid, *(child.pid for child in supervisor.children())]
        assert len(pids) == 3
    assert not any(map(runs, pids))


@pytest.mark.parametrize(
    ("options", "environment", "count"),
    [
        ({"cores": 8, "memory_limit": "1GiB"}, {}, 2),
        pytest.param({"cores": 16, "memory_limit": "1GiB", "port": 0}, {}, 1, marks=pytest.mark.long),
        pytest.param(
            {"cores": 1, "memory_limit": "1GiB"}, {"FLIGHT_SERVER_WORKERS": "2"}, 2, marks=pytest.mark.long
        ),
    ],
    ids=["two fours", "port", "environment"],
)
def test_there_is_a_server_for_each_four_cores(
    options: dict[str, Any], environment: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLIGHT_SERVER_WORKERS")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    running = embedded.start(**options)
    try:
        assert len(running.locations) == count
    finally:
        running.close()


@pytest.mark.parametrize(
    ("cores", "memory_limit", "workers", "count"),
    [(7, 1 << 30, 0, 1), (16, 600 << 20, 0, 2), (16, 64 << 20, 0, 1), (16, 1 << 30, 2, 2)],
    ids=["less", "by memory", "too little for two", "given"],
)
def test_cores_without_memory_for_their_servers_have_fewer(
    cores: int, memory_limit: int, workers: int, count: int
) -> None:
    settings = Settings.model_validate({"cores": cores, "memory_limit": memory_limit, "workers": workers})
    assert settings.worker_count == count


def test_a_wrong_option_is_an_error_with_the_servers_words() -> None:
    with pytest.raises(InvalidRequest, match=r"refuses its settings; .* --memory-limit: .*; flight"):
        embedded.start(memory_limit="1KiB")


def test_an_option_that_the_server_has_not_is_named_with_the_nearest_on_a_narrow_terminal_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(
        InvalidRequest,
        match=r"refuses its settings; .*No such option: --memory \(.*--memory-limit\S*\); flight",
    ):
        embedded.start(memory="1GiB")
    options: Any = {"memory": "1GiB"}
    with pytest.raises(
        InvalidRequest, match=r"there is no option 'memory' .*; did you mean 'memory_limit'\?"
    ):
        ShuffleClient.embedded(**options)


@pytest.mark.parametrize("token", [None, 'a "secret"'], ids=["random", "given"])
def test_a_token_is_needed_and_is_not_on_the_command_line(
    token: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Others than these two belong to other servers.
    monkeypatch.setenv("FLIGHT_SERVER_TOKEN", "of-the-environment")
    config = tmp_path / "server.toml"
    config.write_text('token = "of-the-file"')
    with ShuffleClient.embedded(token=token, config=config) as client:
        client.put("d", pa.table({"n": [1]}))
        process = client._embedded
        assert process is not None
        assert (token is None and len(process.token) >= 32) or process.token == token
        assert process.token.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert Path(f"/proc/{process.pid}/environ").stat().st_mode & 0o077 == 0
        with ShuffleClient(client.location) as stranger, pytest.raises(Unauthenticated):
            stranger.datasets()
        given = [(name.encode(), value.encode()) for name, value in client.headers.items()]
        with flight.connect(client.location) as other:
            options = flight.FlightCallOptions(headers=given)
            assert [info.total_records for info in other.list_flights(options=options)] == [1]


DRIVER = """
import sys, time
from spark_client.connection import embedded
server = embedded.start(workers=int(sys.argv[1]), memory_limit="512MiB")
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGKILL, 2),
        (None, 1),
        *(
            pytest.param(*of, marks=pytest.mark.long)
            for of in ((signal.SIGKILL, 1), (signal.SIGTERM, 2), (None, 2))
        ),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else str(value),
)
def test_the_servers_end_with_their_driver(number: signal.Signals | None, workers: int) -> None:
    command = [sys.executable, "-c", DRIVER, str(workers)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        server = int(driver.stdout.readline())
        pids = [server, *(each.pid for each in psutil.Process(server).children())]
        assert all(map(runs, pids))
        assert len(pids) == (1 if workers == 1 else 1 + workers)
        if number is not None:
            os.kill(driver.pid, number)
    wait_for_end(pids)


def test_a_client_that_was_only_forgotten_ends_its_server_and_its_collector_does_not_wait() -> None:
    server = embedded.start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    del server
    assert runs(pid), "a collector that waits would have killed it"
    os.kill(pid, signal.SIGCONT)
    wait_for_end([pid])


@pytest.mark.long
def test_a_read_that_is_open_when_several_embedded_servers_end_does_not_wait_for_their_supervisor() -> None:
    for_ever = Timeouts(tries=1_000_000)
    with ShuffleClient.embedded(timeouts=for_ever, workers=2) as client:
        names = [f"d{number}" for number in range(8)]
        for name in names:
            client.put(name, pa.table({"n": [1]}))
        assert len({client._servers.of(name).location for name in names}) == 2
        streams = [partition_stream(client._servers.of(name), Ticket(name, 0), lane="grpc") for name in names]
    for stream in streams:
        with pytest.raises(EmbeddedEnded):
            stream.read_burst()
