"""Readers that come in a crowd that takes nothing: which of them get room, and which are ended for it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from flight_server.datasets.dataset import Dataset
from flight_server.node import Node
from flight_server.protocol import CreateRequest
from flight_server.protocol.errors import ReaderTooSlow
from flight_server.tiering.readback import Reader
from flight_server.transfer import FrameRange
from tests.flight_server.transfer.test_delivery import end, takes_nothing
from tests.support.frames import frame
from tests.support.nodes import running_node

LIMIT_BYTES = 8 << 20
FRAME_BYTES = 128 << 10
FRAMES = 4
SLOTS = LIMIT_BYTES // 8 // FRAME_BYTES
CONNECTIONS = 20
READERS_OF_A_CONNECTION = 10
STALL_SECONDS = 0.02


def sealed(node: Node) -> Dataset:
    """Dataset ``d``: one partition of ``FRAMES`` frames."""
    dataset, _ = node.catalogue.create(CreateRequest("d"), None)
    partition = dataset.begin_stream(0)
    for number in range(FRAMES):
        data = bytes([number]) * FRAME_BYTES
        partition.publish(frame(data, pool=node.budget.frames))
    dataset.end_stream(partition)
    return dataset


async def takes(_: object) -> None:
    await asyncio.sleep(0)


async def read(node: Node, dataset: Dataset, peer: str, *, good: bool) -> int:
    """As the gRPC lane reads: how many frames were taken until the end, or until the reader was ended."""
    frames, reader = 0, Reader("d", 0, peer)
    async with aclosing(node.reads.read(dataset, reader, FrameRange())) as runs:
        async for run in runs:
            try:
                await node.delivery.deliver(takes if good else takes_nothing, b"", reader, room=run[0].room)
            except ReaderTooSlow:
                return frames
            frames += len(run)
    return frames


async def test_a_good_reader_in_a_crowd_is_served_before_more_readers_are_ended_than_there_are_connections(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES, stall_seconds=STALL_SECONDS) as node:
        dataset = sealed(node)
        peers = [f"peer {n}" for n in range(CONNECTIONS) for _ in range(READERS_OF_A_CONNECTION)]
        half = len(peers) // 2
        crowd = [asyncio.ensure_future(read(node, dataset, peer, good=False)) for peer in peers[:half]]
        await asyncio.sleep(0)
        good = asyncio.ensure_future(read(node, dataset, "good", good=True))
        await asyncio.sleep(0)
        crowd += [asyncio.ensure_future(read(node, dataset, peer, good=False)) for peer in peers[half:]]
        while not good.done():
            await asyncio.sleep(STALL_SECONDS)
            for _ in range(100):  # what has got room reads, also when the loop comes late from the sleep
                await asyncio.sleep(0)
            node.eviction.look_for_newcomers()
        assert await good == FRAMES
        ended = sum(each.done() for each in crowd)
        assert ended <= CONNECTIONS
        assert node.budget.unproven.used_bytes <= LIMIT_BYTES // 8
        assert node.budget.sends.used_bytes <= LIMIT_BYTES // 4
        # Each connection has had its chance; the further readers of these end no one.
        for _ in range(CONNECTIONS):
            await asyncio.sleep(2 * STALL_SECONDS)
            node.eviction.look_for_newcomers()
        assert sum(each.done() for each in crowd) <= CONNECTIONS
        await end(*crowd)


async def test_steady_slow_readers_have_the_room_in_turn(tmp_path: Path) -> None:
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES) as node:
        dataset = sealed(node)
        taken = dict.fromkeys(range(2 * SLOTS), 0)
        least_at_an_end: list[int] = []

        async def read_slowly(number: int) -> None:
            reader = Reader("d", 0, f"slow {number}")

            async def takes_slowly(_: object) -> None:
                await asyncio.sleep(0.002)
                reader.pace.stall()  # as a look that has come meanwhile

            async with aclosing(node.reads.read(dataset, reader, FrameRange())) as runs:
                async for run in runs:
                    await node.delivery.deliver(takes_slowly, b"", reader, room=run[0].room)
                    taken[number] += len(run)
            least_at_an_end.append(min(taken.values()))

        await asyncio.gather(*map(read_slowly, taken))
        assert set(taken.values()) == {FRAMES}
        assert least_at_an_end[0] > 0, "each has begun when the first one has all"


async def test_further_readers_of_a_connection_leave_room_for_the_first_of_another(tmp_path: Path) -> None:
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES, stall_seconds=STALL_SECONDS) as node:
        dataset = sealed(node)
        crowd = [asyncio.ensure_future(read(node, dataset, "crowd", good=False)) for _ in range(4 * SLOTS)]
        await asyncio.sleep(0.01)
        assert await read(node, dataset, "good", good=True) == FRAMES
        assert not any(each.done() for each in crowd)
        await end(*crowd)


async def test_the_limit_of_the_sizing_page_has_room_for_a_message_of_each_stream_of_a_connection(
    tmp_path: Path,
) -> None:
    streams, messages = 64, 40
    page = (Path(__file__).parents[3] / "deploy" / "README.md").read_text()
    assert f"{messages} \N{MULTIPLICATION SIGN} N \N{MULTIPLICATION SIGN} its largest message" in page
    async with running_node(tmp_path, memory_limit=messages * streams * FRAME_BYTES) as node:
        dataset = sealed(node)
        paused = [asyncio.ensure_future(read(node, dataset, "one", good=False)) for _ in range(streams)]
        for _ in range(100):  # each reads as far as its room lets it
            await asyncio.sleep(0)
        assert [wait["waiting_for"] for wait in node.waits.listed()] == ["reader"] * streams
        await end(*paused)


async def test_a_reader_that_has_taken_a_message_is_not_ended_for_a_newcomer(tmp_path: Path) -> None:
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES, stall_seconds=STALL_SECONDS) as node:
        dataset = sealed(node)
        reader = Reader("d", 0, "computes")
        async with aclosing(node.reads.read(dataset, reader, FrameRange())) as runs:
            await anext(runs)
            run = await anext(runs)  # it has taken the first
            held = node.budget.unproven.reserve((SLOTS - 1) * FRAME_BYTES)
            write = asyncio.ensure_future(node.delivery.deliver(takes_nothing, b"", reader, room=run[0].room))
            newcomer = asyncio.ensure_future(read(node, dataset, "new", good=True))
            for _ in range(3):
                await asyncio.sleep(2 * STALL_SECONDS)
                node.eviction.look_for_newcomers()
            assert not write.done()
            assert not newcomer.done()
            held.free()
            assert await newcomer == FRAMES
            await end(write)
