"""Followers against a server whose every byte is known; ``tests.integration`` has the real one."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from flight_server.protocol.errors import PartitionFailed
from spark_client.changelogs.version_follower import Follower
from spark_client.connection import ForkedProcess, Reading, RemoteServer, Timeouts
from spark_client.merge import DatasetRef, Portion
from tests.support.forked_child import in_child
from tests.support.http_source import HttpSource
from tests.support.polling import eventually
from tests.support.versions import marked, opening

pytestmark = pytest.mark.usefixtures("hasty")

QUICK = Timeouts(tries=2)
TWO = [marked([1], 5, last=True), marked([2], 6), marked([3], 6, last=True)]


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    made = RemoteServer("grpc://127.0.0.1:1", timeouts=QUICK, reading=Reading(lane="bulk"))
    yield made
    made.close()


@pytest.fixture
def source() -> Iterator[HttpSource]:
    """Two steps, and then silence."""
    with HttpSource(lambda *_: opening(TWO)) as made:
        yield made


def follower_of(server: RemoteServer, source: HttpSource) -> Follower:
    return Follower(DatasetRef(server, "d", "g1", (Portion((source.url,)),)), 4)


def test_changes_are_iterated_until_another_thread_closes_the_follower(
    server: RemoteServer, source: HttpSource
) -> None:
    follower = follower_of(server, source)
    found: list[tuple[int, list[int]]] = []

    def take() -> None:
        for change in follower:
            found.append((change.version, change.table["n"].to_pylist()))  # noqa: PERF401 (one at a time)

    thread = threading.Thread(target=take)
    thread.start()
    eventually(lambda: len(found) == 2, expected=True)
    follower.close()
    thread.join(30)
    assert not thread.is_alive()
    assert found == [(5, [1]), (6, [2, 3])]
    follower.close()
    assert list(follower) == []


async def test_changes_are_iterated_without_blocking_the_loop(
    server: RemoteServer, source: HttpSource
) -> None:
    async with follower_of(server, source) as follower:
        found = []
        async for change in follower:
            found.append((change.version, change.table["n"].to_pylist()))
            if len(found) == 2:
                break
        assert found == [(5, [1]), (6, [2, 3])]
        waiting = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        assert not waiting.done()
        await follower.aclose()
        with pytest.raises(StopAsyncIteration):
            await waiting


async def test_cancelling_the_wait_for_a_change_loses_none(server: RemoteServer) -> None:
    may_go_on = threading.Event()

    def answer(*_: object) -> Iterator[bytes]:
        pieces = opening(TWO)
        yield from pieces[:3]
        may_go_on.wait(30)
        yield from pieces[3:]

    with HttpSource(answer) as source:
        async with follower_of(server, source) as follower:
            assert (await anext(follower)).version == 5
            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            may_go_on.set()
            assert (await anext(follower)).table["n"].to_pylist() == [2, 3]


def test_an_error_ends_the_follower(server: RemoteServer) -> None:
    with HttpSource(lambda *_: opening([([1], None)])) as source:
        follower = follower_of(server, source)
        with pytest.raises(PartitionFailed):
            next(follower)
        assert list(follower) == []


def test_a_forked_child_gets_an_error_and_leaves_the_connection_alone(
    server: RemoteServer, source: HttpSource
) -> None:
    follower = follower_of(server, source)
    assert next(follower).version == 5

    def child() -> None:
        nonlocal follower
        with pytest.raises(ForkedProcess):
            next(follower)
        follower.close()
        del follower
        gc.collect()

    in_child(child)
    assert next(follower).version == 6
    follower.close()
