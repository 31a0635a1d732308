"""A proxy in the environment, which gRPC takes by itself: not for servers that the client started, nor for loopback."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from spark_client import Reading, ShuffleClient, Timeouts, Writing
from spark_client.commands.doctor import proxy_of
from spark_client.connection import RemoteServer, Unreachable

TABLE = pa.table({"x": [1, 2, 3]})
ONCE = Timeouts(tries=1, call_seconds=20)


class Recorder:
    """A proxy that hangs up on each client, and keeps the first line that it sent."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:secret@127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                with self._listener.accept()[0] as client:
                    self.lines.append(client.recv(1 << 16).partition(b"\r\n")[0])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    recorder = Recorder()
    yield recorder
    recorder.close()


def test_servers_that_the_client_started_and_loopback_are_reached_without_the_proxy(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    monkeypatch.setenv("https_proxy", recorder.url)
    reading, writing = Reading(lane="grpc"), Writing(lane="grpc")
    with ShuffleClient.embedded(workers=2, reading=reading, writing=writing, timeouts=ONCE) as client:
        client.put("d", TABLE)
        assert client.get("d").read_all().equals(TABLE)
        assert pickle.loads(pickle.dumps(client._server)).direct
        assert client._server.at("grpc://server.invalid:1").direct
        for host in ("127.0.0.1", "localhost"):
            location = f"grpc://{host}:{urlsplit(client.location.split(',')[0]).port}"
            with closing(RemoteServer(location, token=client._server.token, timeouts=ONCE)) as server:
                assert server.action("locations", once=True)
    assert recorder.lines == []


@pytest.mark.parametrize("variable", ["https_proxy", "http_proxy", "grpc_proxy"])
def test_another_server_is_reached_through_the_proxy_unless_the_client_started_it(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder, variable: str
) -> None:
    monkeypatch.setenv(variable, recorder.url)
    with pytest.raises(Unreachable):
        RemoteServer("grpc://server.invalid:8815", timeouts=ONCE).action("locations", once=True)
    assert set(recorder.lines) == {b"CONNECT server.invalid:8815 HTTP/1.1"}
    recorder.lines.clear()
    with pytest.raises(Unreachable):
        RemoteServer("grpc://server.invalid:8815", timeouts=ONCE, direct=True).action("locations", once=True)
    assert recorder.lines == []


@pytest.mark.parametrize(
    ("location", "left_out", "name"),
    [
        ("grpc://flight:8815", "", "https_proxy"),
        ("grpc+tls://flight.example:8815", "other, example", None),
        ("grpc://10.1.2.3:8815", "10.0.0.0/8", None),
        ("grpc://10.1.2.3:8815", "11.0.0.0/8", "https_proxy"),
        ("grpc://[::1]:8815", "", None),
        ("grpc://localhost:8815", "", None),
        ("grpc+unix:/run/server", "", None),
    ],
)
def test_the_variable_of_the_proxy_is_named(
    location: str, left_out: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each, value in {"grpc_proxy": "", "https_proxy": "http://p:1", "http_proxy": "http://q:1"}.items():
        monkeypatch.setenv(each, value)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    monkeypatch.setenv("no_proxy", left_out)
    assert proxy_of(location) == name
