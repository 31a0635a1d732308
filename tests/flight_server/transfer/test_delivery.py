"""A reader that takes nothing is ended only when another reader gets nothing because of it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

from flight_server.datasets.dataset import Dataset
from flight_server.memory.accounts import Pace
from flight_server.memory.pool import Reservation
from flight_server.node import Node
from flight_server.protocol import CreateRequest
from flight_server.protocol.errors import ReaderTooSlow
from flight_server.tiering.readback import Reader
from flight_server.transfer import FrameRange
from tests.support.frames import frame
from tests.support.nodes import running_node

READER = Reader("d", 0, "test")
STALL_SECONDS = 0.05
LIMIT_BYTES = 8 << 20


async def takes_nothing(_: object) -> None:
    await asyncio.Event().wait()


async def deliver(node: Node, room: Reservation | None) -> str:
    try:
        await node.delivery.deliver(takes_nothing, b"", READER, room=room)
    except ReaderTooSlow as error:
        return error.message  # a kept exception would keep the room
    return ""


async def stalled(node: Node, room: Reservation | None) -> asyncio.Task[str]:
    """A write that has taken longer than the stall limit."""
    write = asyncio.ensure_future(deliver(node, room))
    del room
    await asyncio.sleep(2 * STALL_SECONDS)
    return write


async def look_for_stalled(node: Node, times: int) -> None:
    """What the housekeeping does so many times."""
    for _ in range(times):
        node.eviction.look()
        await asyncio.sleep(2 * STALL_SECONDS)


async def end(*writes: asyncio.Future[Any]) -> None:
    for write in writes:
        write.cancel()
        await asyncio.wait([write])


async def test_a_stalled_reader_that_no_other_waits_behind_is_left_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path, stall_seconds=STALL_SECONDS) as node:
        write = await stalled(node, node.budget.sends.reserve(node.budget.sends.limit_bytes or 0))
        await look_for_stalled(node, 3)
        assert not write.done()
        await end(write)


async def test_a_stalled_reader_is_left_alone_while_the_others_get_room(tmp_path: Path) -> None:
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES, stall_seconds=STALL_SECONDS) as node:
        sends = node.budget.sends
        write = await stalled(node, sends.reserve(LIMIT_BYTES // 8))
        held = sends.reserve(LIMIT_BYTES // 8)
        for _ in range(4):
            granted: list[Reservation] = []
            for _ in range(2):
                sends.request(LIMIT_BYTES // 8, granted.append)
            held.free()
            held = granted.pop()  # and one waits still
            await look_for_stalled(node, 1)
            held.free()
            held = granted.pop()
        assert not write.done()
        held.free()
        await end(write)


async def test_the_stalled_are_ended_one_after_the_other_the_longest_first_until_it_suffices(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES, stall_seconds=STALL_SECONDS) as node:
        sends, unproven = node.budget.sends, node.budget.unproven
        harmless = await stalled(node, None)
        writes = [await stalled(node, pool.reserve(LIMIT_BYTES // 16)) for pool in (sends, unproven) * 2]
        granted: list[Reservation] = []
        # For a beginner only the room of the unproven will do: of these the first, although a proven one has
        # stalled for longer.
        unproven.request(LIMIT_BYTES // 16, granted.append)
        await look_for_stalled(node, 3)
        assert [write.done() for write in writes] == [False, True, False, False]
        assert len(granted) == 1
        # For one that is proven any room will do.
        sends.request(LIMIT_BYTES // 8, granted.append)
        await look_for_stalled(node, 4)
        assert [write.done() for write in writes] == [True, True, True, False]
        assert len(granted) == 2
        assert all(
            "dataset 'd' partition 0: this reader took nothing" in write.result() for write in writes[:3]
        )
        assert not harmless.done()
        await end(harmless, writes[3])


def begun(node: Node, messages: list[bytes]) -> Dataset:
    """Dataset ``d``, whose producer has sent these frames and is not at its end."""
    dataset, _ = node.catalogue.create(CreateRequest("d"), None)
    partition = dataset.begin_stream(0)
    for data in messages:
        partition.publish(frame(data, pool=node.budget.frames))
    return dataset


async def test_an_unproven_reader_that_takes_what_it_gets_keeps_its_room_until_it_has_to_wait(
    tmp_path: Path,
) -> None:
    """Others that wait, and would give nothing back, get none of it in between."""
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES) as node:
        dataset = begun(node, [bytes([number]) * (256 << 10) for number in range(6)])
        unproven = node.budget.unproven
        held = unproven.reserve((unproven.limit_bytes or 0) - (256 << 10))
        granted: list[Reservation] = []
        async with aclosing(node.reads.read(dataset, Reader("d", 0, "good"), FrameRange())) as runs:
            assert [outgoing.data[0] for outgoing in await anext(runs)] == [0]
            unproven.request(256 << 10, granted.append)
            for number in range(1, 6):
                assert [outgoing.data[0] for outgoing in await anext(runs)] == [number]
                assert not granted
            waiting = asyncio.ensure_future(anext(runs))
            while not granted:  # noqa: ASYNC110  # the pool has no event
                await asyncio.sleep(0)
            await end(waiting)
        held.free()


async def test_what_unproven_readers_hold_is_no_more_than_half_and_proven_ones_wait_for_none_of_it(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES) as node:
        dataset = begun(node, [bytes(512 << 10)] * 4)
        dataset.end_stream(dataset.partition(0))
        paused = [node.reads.read(dataset, Reader("d", 0, f"paused {n}"), FrameRange()) for n in range(10)]
        first = [asyncio.ensure_future(anext(runs)) for runs in paused]
        await asyncio.sleep(0.01)
        assert sum(each.done() for each in first) == 2  # 1 MiB
        proven = Reader("d", 0, "good", Pace(proven=True))
        frames = 0
        async with aclosing(node.reads.read(dataset, proven, FrameRange())) as runs:
            async for run in runs:
                frames += len(run)
        assert frames == 4
        assert sum(each.done() for each in first) == 2
        await end(*(each for each in first if not each.done()))
        del first
        for runs in paused:
            await runs.aclose()
