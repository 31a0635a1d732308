"""Calls to a server that is away for a moment."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flight_server.protocol.errors import NotFound, Unavailable
from spark_client.connection import EmbeddedEnded, RemoteServer, Timeouts, Unreachable, retrying
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

FOR_EVER = Timeouts(tries=1_000_000)


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess.start(http_port=0) as process:
        yield process


@pytest.fixture
def proxy(process: ServerProcess) -> Iterator[Proxy]:
    with Proxy.to(process.location) as proxy:
        yield proxy


@pytest.mark.parametrize("arrived", [False, True])
@pytest.mark.usefixtures("hasty")
def test_a_call_waits_until_its_server_is_back(proxy: Proxy, arrived: bool) -> None:
    server = RemoteServer(proxy.location, timeouts=FOR_EVER)
    if arrived:  # in another process
        server = pickle.loads(pickle.dumps(server))
    else:
        server.list_flights()
    proxy.refuse()
    proxy.cut()
    before = proxy.connections
    with ThreadPoolExecutor() as threads:
        listed, asked = threads.submit(server.list_flights), threads.submit(server.action, "locations")
        eventually(lambda: proxy.connections > before + 1, True)
        assert not listed.done()
        assert not asked.done()
        proxy.refuse(refusing=False)
        assert listed.result() == []
        assert "locations" in asked.result()
    server.close()


@pytest.mark.usefixtures("hasty")
def test_a_server_that_never_answered_and_a_call_that_is_made_once_fail_at_once(proxy: Proxy) -> None:
    proxy.refuse()
    server = RemoteServer(proxy.location, timeouts=FOR_EVER)
    with pytest.raises(Unreachable):
        server.list_flights()
    server.patient = True
    with pytest.raises(Unreachable):
        server.action("why", once=True)
    server.close()


@pytest.mark.usefixtures("hasty")
def test_an_answer_of_the_server_is_no_reason_to_ask_again(proxy: Proxy) -> None:
    server = RemoteServer(proxy.location, timeouts=FOR_EVER)
    server.patient = True
    with pytest.raises(NotFound):
        server.flight_info("nothing")
    server.close()


@pytest.mark.usefixtures("hasty")
def test_a_call_is_not_begun_again_after_its_time_or_its_tries() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise Unreachable("away")

    with pytest.raises(Unreachable):
        retrying(FOR_EVER, call, within_seconds=0)
    assert len(calls) == 1
    with pytest.raises(Unreachable):
        retrying(Timeouts(tries=3), call)
    assert len(calls) == 1 + 4
    with pytest.raises(Unreachable):
        retrying(FOR_EVER, call, again=lambda: False)
    assert len(calls) == 1 + 4 + 1


def test_a_server_that_was_embedded_is_not_called_again() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise EmbeddedEnded("its client was closed")

    with pytest.raises(EmbeddedEnded):
        retrying(FOR_EVER, call, (Unavailable,))
    assert len(calls) == 1


def test_the_default_pauses_last_longer_than_a_restart() -> None:
    timeouts = Timeouts()
    for _ in range(100):
        assert sum(map(timeouts.pause_seconds, range(1, timeouts.tries + 1))) > 10
