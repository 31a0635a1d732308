"""Joined messages that are kept for readers behind: how many, until when, and that no stream waits for their room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa

from flight_server.datasets import Dataset
from flight_server.frames import Frame, SchemaMessage
from flight_server.lanes.grpc.joined_frames import (
    KEPT_LEAST_BYTES,
    KEPT_MESSAGES,
    KEPT_PARTS,
    JoinedFrames,
    JoinedMessage,
)
from flight_server.memory import reserve
from flight_server.node import Node
from flight_server.protocol import CreateRequest
from tests.support.frames import frame
from tests.support.nodes import running_node

SCHEMA = SchemaMessage.of(pa.schema([("n", pa.int64())]))


def dataset_of(node: Node, name: str) -> Dataset:
    return node.catalogue.create(CreateRequest(name), SCHEMA)[0]


def made(node: Node, joined: JoinedFrames, dataset: Dataset, size_bytes: int) -> Frame:
    """A frame with which a message of so many bytes begins, that its reader has been sent."""
    first = frame(40, pool=node.budget.frames)
    joined.add(dataset, first, JoinedMessage(bytes(size_bytes), 2, node.budget.sends.reserve(size_bytes)))
    return first


async def test_messages_made_for_one_of_several_readers_are_kept_until_the_last_one_ends(node: Node) -> None:
    joined, sends = JoinedFrames(node.counters, node.budget.sends), node.budget.sends
    dataset, other = dataset_of(node, "d"), dataset_of(node, "other")
    with joined.reading(other), joined.reading(other):
        with joined.reading(dataset):
            assert joined.find(made(node, joined, dataset, 100), 2) is None
            with joined.reading(dataset):
                first, others = made(node, joined, dataset, 100), made(node, joined, other, 200)
            assert joined.find(first, 1) is None
            assert joined.find(first, 2) is not None
            assert sends.used_bytes == 300
        assert joined.find(first, 2) is None
        assert joined.find(others, 2) is not None
        assert sends.used_bytes == 200
    assert sends.used_bytes == 0


async def test_the_messages_made_last_are_kept(node: Node) -> None:
    joined, sends = JoinedFrames(node.counters, node.budget.sends), node.budget.sends
    assert sends.limit_bytes is not None
    dataset, size_bytes = dataset_of(node, "d"), sends.limit_bytes // KEPT_PARTS // 2
    with joined.reading(dataset), joined.reading(dataset):
        firsts = [made(node, joined, dataset, size_bytes) for _ in range(3)]
        assert [joined.find(first, 2) is not None for first in firsts] == [False, True, True]
        assert sends.used_bytes == 2 * size_bytes
        made(node, joined, dataset, 3 * size_bytes)
        assert sends.used_bytes == 0
        assert joined.find(made(node, joined, dataset, size_bytes), 2) is not None


async def test_no_stream_waits_for_the_room_of_kept_messages(node: Node) -> None:
    joined, budget = JoinedFrames(node.counters, node.budget.sends), node.budget
    sends, dataset = budget.sends, dataset_of(node, "d")
    assert sends.limit_bytes is not None
    for pool in (sends, budget.unproven, budget.further):
        with joined.reading(dataset), joined.reading(dataset):
            first = made(node, joined, dataset, 1000)
            others = sends.reserve(sends.limit_bytes - 1500)
            async with asyncio.timeout(10):
                room = await reserve(pool, 1000, node.waits)
            assert joined.find(first, 2) is None
            assert sends.used_bytes == sends.limit_bytes - 500
            room.free()
            others.free()


async def test_no_message_is_kept_while_a_stream_waits(node: Node) -> None:
    joined, sends = JoinedFrames(node.counters, node.budget.sends), node.budget.sends
    dataset = dataset_of(node, "d")
    assert sends.limit_bytes is not None
    others = sends.reserve(sends.limit_bytes)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(reserve(node.budget.further, 1000, node.waits))
        await asyncio.sleep(0)
        assert sends.has_requests
        with joined.reading(dataset), joined.reading(dataset):
            assert joined.find(made(node, joined, dataset, 1000), 2) is None
        others.free()
        (await waiting).free()
    assert not sends.has_requests


async def test_of_tiny_messages_few_are_kept(tmp_path: Path) -> None:
    async with running_node(tmp_path, memory_limit=64 << 20) as node:
        joined, sends = JoinedFrames(node.counters, node.budget.sends), node.budget.sends
        dataset = dataset_of(node, "d")
        assert sends.limit_bytes is not None
        most = sends.limit_bytes // KEPT_PARTS // KEPT_LEAST_BYTES
        assert most < KEPT_MESSAGES
        with joined.reading(dataset), joined.reading(dataset):
            firsts = [made(node, joined, dataset, 100) for _ in range(most + 10)]
            assert sum(joined.find(first, 2) is not None for first in firsts) == most
            assert sends.used_bytes == 100 * most
        assert sends.used_bytes == 0


async def test_a_large_server_keeps_no_more_messages_than_it_drops_in_one_step(tmp_path: Path) -> None:
    async with running_node(tmp_path, memory_limit=8 << 30) as node:
        joined, sends = JoinedFrames(node.counters, node.budget.sends), node.budget.sends
        dataset = dataset_of(node, "d")
        with joined.reading(dataset), joined.reading(dataset):
            firsts = [made(node, joined, dataset, 1000) for _ in range(KEPT_MESSAGES + 10)]
            assert [joined.find(first, 2) is not None for first in firsts] == [False] * 10 + [
                True
            ] * KEPT_MESSAGES
            assert sends.used_bytes == 1000 * KEPT_MESSAGES
        assert sends.used_bytes == 0
