"""What the RPCs do by themselves, with a context that stands for gRPC's; the wire is in ``integration``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from flight_server.lanes.grpc import service
from flight_server.node import Node
from flight_server.protocol import Commit, CreateRequest, Kind
from flight_server.protocol.errors import DatasetDropped, ProducerFailed
from flight_server.reporting import ServedCall
from tests.support.accepting import accept
from tests.support.callers import anyone
from tests.support.frames import frame
from tests.support.nodes import running_node
from tests.support.raw_flight import fields_of, path


class Caller:
    """What a handler asks gRPC's context for, and what it wrote."""

    def __init__(self, deadline_seconds: float | None = None) -> None:
        self._deadline_seconds = deadline_seconds
        self.written: list[bytes] = []

    async def send_initial_metadata(self, headers: Any) -> None:
        pass

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    def time_remaining(self) -> float | None:
        return self._deadline_seconds

    def peer(self) -> str:
        return "test"


@pytest_asyncio.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A node on which only a change, and no deadline, ends a poll in the time that a test has."""
    monkeypatch.setattr(service, "POLL_SECONDS", 3600.0)
    async with running_node(tmp_path) as node:
        yield node


async def poll(node: Node, again: bytes | None = None, deadline_seconds: float | None = None) -> bytes | None:
    """The descriptor to poll again with, if there is one."""
    caller = Caller(deadline_seconds)
    call = ServedCall("grpc", "PollFlightInfo", caller.peer())
    await node.flight_service().poll_flight_info(
        path("d") if again is None else again, caller, anyone(node.catalogue, "PollFlightInfo"), call
    )
    (answer,) = caller.written
    return fields_of(answer).get(2)


async def polling(node: Node, count: int = 1) -> list[asyncio.Task[bytes | None]]:
    """Polls of dataset ``d`` that wait."""
    again = await poll(node)
    assert again is not None
    tasks = [asyncio.ensure_future(poll(node, again)) for _ in range(count)]
    await asyncio.sleep(0)
    assert [wait["waiting_for"] for wait in node.waits.listed("d")] == ["producer"] * count
    return tasks


def create(node: Node, kind: Kind = Kind.STREAM, partitions: int = 2) -> None:
    node.catalogue.create(CreateRequest("d", kind, partitions=partitions, producers=None), None)


def publishes(node: Node) -> None:
    node.catalogue.find("d").partition(1).publish(frame(b"data"))


def publishes_no_rows(node: Node) -> None:
    node.catalogue.find("d").partition(1).publish(frame(b"data", rows=0))


def seals_one(node: Node) -> None:
    dataset = node.catalogue.find("d")
    dataset.end_stream(dataset.begin_stream(1))


@pytest.mark.parametrize("change", [publishes, publishes_no_rows, seals_one])
async def test_each_change_of_a_stream_answers_every_poll_also_a_later_one(
    node: Node, change: Callable[[Node], None]
) -> None:
    create(node)
    first, polls = await poll(node), await polling(node, 3)
    change(node)
    async with asyncio.timeout(10):
        assert all(await asyncio.gather(*polls))
        second = await poll(node, first)
    assert second not in (None, first)
    assert len(node.waits) == node.catalogue.find("d").changes.waiting == 0


async def test_a_commit_and_the_seal_of_a_shuffle_without_readers_answer_a_poll(node: Node) -> None:
    create(node, Kind.SHUFFLE)
    dataset = node.catalogue.find("d")
    (waiting,) = await polling(node)
    dataset.commit(dataset.begin_attempt(0, "a"), Commit(0, 0))
    async with asyncio.timeout(10):
        await waiting
        (waiting,) = await polling(node)
        accept(dataset, None)
        dataset.close()
        await waiting
    assert dataset.partitions() == []


async def test_a_drop_answers_a_poll_with_what_has_happened(node: Node) -> None:
    create(node)
    (waiting,) = await polling(node)
    node.catalogue.drop("d")
    async with asyncio.timeout(10):
        with pytest.raises(DatasetDropped, match="dataset 'd' was dropped"):
            await waiting


async def test_a_failure_answers_a_poll_with_its_cause_and_later_ones_at_once(node: Node) -> None:
    create(node)
    (waiting,) = await polling(node)
    node.catalogue.find("d").partition(1).fail(ProducerFailed("broke off"))
    async with asyncio.timeout(10):
        with pytest.raises(ProducerFailed, match="broke off"):
            await waiting
        with pytest.raises(ProducerFailed, match="broke off"):
            await poll(node)


async def test_a_poll_ends_well_before_its_caller_s_deadline(node: Node) -> None:
    create(node)
    again = await poll(node)
    async with asyncio.timeout(10):
        assert await poll(node, again, deadline_seconds=0.02) == again


async def test_a_poll_that_is_cancelled_leaves_nothing_and_the_next_one_is_answered(node: Node) -> None:
    create(node)
    leaving, staying = await polling(node, 2)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert node.catalogue.find("d").changes.waiting == len(node.waits) == 1
    publishes(node)
    async with asyncio.timeout(10):
        assert await staying
