"""The bursts of a read: their sizes and rooms, and that every frame comes once, wherever it is."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import Any

import pyarrow as pa
import pytest

from flight_server.datasets import Dataset, Partition, PartitionState
from flight_server.frames import Encoder, Frame, FrameBuilder, SchemaMessage
from flight_server.memory import Pace
from flight_server.node import Node
from flight_server.protocol import CreateRequest, Unavailable
from flight_server.storage import SegmentSlice
from flight_server.tiering import Reader
from flight_server.transfer import FrameRange, Gathering
from flight_server.transfer.reading import BURST_MESSAGES
from tests.support.frames import frame, on_disk

PLAIN = pa.schema([("n", pa.int64())])
TEXTS = pa.schema([("text", pa.dictionary(pa.int32(), pa.string()))])


def dataset_of(node: Node, *sizes_bytes: int, name: str = "d") -> Dataset:
    """An open dataset whose partition has frames of these sizes, each of one row."""
    dataset, _ = node.catalogue.create(CreateRequest(name), SchemaMessage.of(PLAIN))
    partition = dataset.begin_stream(0)
    for size_bytes in sizes_bytes:
        partition.publish(frame(size_bytes, pool=node.budget.frames))
    return dataset


async def sizes_of_bursts(
    node: Node,
    dataset: Dataset,
    wanted: FrameRange,
    burst_bytes: int,
    gathering: Gathering | None = None,
) -> list[list[int]]:
    """The sizes of the messages in each burst; with the rest of ``sends`` free meanwhile, and all of it at the end."""
    found: list[list[int]] = []
    reader = Reader(dataset.name, 0, "test", Pace(proven=True))
    read = node.reads.read(dataset, reader, wanted, burst_bytes=burst_bytes, gathering=gathering)
    async with aclosing(read) as bursts:
        async for burst in bursts:
            found.append([outgoing.message.size_bytes for outgoing in burst])
            assert burst.size_bytes == sum(found[-1]) == node.budget.sends.used_bytes
    assert node.budget.sends.used_bytes == 0
    assert reader.pace.size_bytes == sum(map(sum, found))
    return found


async def test_a_burst_has_the_frames_that_fit_it_and_one_room(node: Node) -> None:
    dataset = dataset_of(node, 40, 40, 40, 200, 40, 100)
    dataset.end_stream(dataset.partition(0))
    assert await sizes_of_bursts(node, dataset, FrameRange(), 100) == [[40, 40], [40], [200], [40], [100]]
    assert await sizes_of_bursts(node, dataset, FrameRange(), 0) == [[40], [40], [40], [200], [40], [100]]
    assert await sizes_of_bursts(node, dataset, FrameRange(1, 3), 1000) == [[40, 40]]
    assert (node.counters.frames_out, node.counters.bytes_out) == (14, 2 * 460 + 80)


async def test_a_gathered_burst_has_small_frames_up_to_the_number_where_the_next_one_begins(
    node: Node,
) -> None:
    gathering = Gathering(50, lambda first: 4 - first.index % 4)
    sizes_bytes = [40, 40, 40, 40, 40, 60, 40, 40, 60, 60, 40]
    wanted = [[40] * 4, [40], [60], [40, 40], [60], [60], [40]]
    dataset = dataset_of(node, *sizes_bytes)
    dataset.end_stream(dataset.partition(0))
    assert await sizes_of_bursts(node, dataset, FrameRange(), 1000, gathering) == wanted
    assert await sizes_of_bursts(node, dataset, FrameRange(), 100, gathering) == [
        *([40, 40], [40, 40], [40], [60], [40, 40], [60], [60], [40])
    ]
    assert await sizes_of_bursts(node, dataset, FrameRange(2), 1000, gathering) == [[40, 40], *wanted[1:]]


async def test_a_range_gives_the_totals_of_the_frames_of_its_runs(node: Node) -> None:
    dataset = dataset_of(node, 40, 50, 60)
    dataset.end_stream(dataset.partition(0))
    ranges = [FrameRange(0, 2), FrameRange(0, 2)]
    for wanted, burst_bytes in zip(ranges, (1000, 0), strict=True):
        await sizes_of_bursts(node, dataset, wanted, burst_bytes)
    together, alone = (wanted.trailers(dataset.partition(0)) for wanted in ranges)
    assert together == alone
    assert ("x-flight-shuffle-frames", "2") in together


async def test_a_burst_has_no_more_messages_than_can_be_sent_in_a_few_milliseconds(node: Node) -> None:
    dataset = dataset_of(node, *[10] * (BURST_MESSAGES + 1))
    dataset.end_stream(dataset.partition(0))
    bursts = await sizes_of_bursts(node, dataset, FrameRange(), 1 << 20)
    assert [len(burst) for burst in bursts] == [BURST_MESSAGES, 1]


async def test_without_room_for_a_run_its_frames_go_out_one_by_one(node: Node) -> None:
    limit_bytes = node.budget.sends.limit_bytes
    assert limit_bytes is not None
    dataset = dataset_of(node, 4000, 4000, 4000)
    dataset.end_stream(dataset.partition(0))
    reader = Reader("d", 0, "test", Pace(proven=True))
    others = node.budget.sends.reserve(limit_bytes - 9000)
    found: list[int] = []
    async with aclosing(node.reads.read(dataset, reader, FrameRange(), burst_bytes=1 << 20)) as bursts:
        async for burst in bursts:
            found.append(len(burst))
            assert node.budget.sends.used_bytes <= limit_bytes
    assert found == [2, 1]
    others.free()


async def test_a_reader_that_leaves_inside_a_run_gives_back_all_of_its_room(node: Node) -> None:
    dataset = dataset_of(node, 40, 40, 40)
    reader = Reader("d", 0, "test", Pace(proven=True))
    async with aclosing(node.reads.read(dataset, reader, FrameRange(), burst_bytes=1000)) as bursts:
        burst = await anext(bursts)
        assert [outgoing.room for outgoing in burst] == [burst[0].room] * 3
        burst.park()
        assert node.budget.sends.used_bytes == 0
        await burst.fetch(burst[1])
        assert (burst[1].payload, burst[0].payload) != (None, None)
        assert node.budget.sends.used_bytes == 40
        del burst
    assert node.budget.sends.used_bytes == 0


async def test_a_reader_waits_for_a_schema_to_its_deadline_and_is_listed_meanwhile(node: Node) -> None:
    dataset, _ = node.catalogue.create(CreateRequest("d"), None)
    node.reads.schema_seconds = 0.1
    waiting = asyncio.ensure_future(node.reads.schema_of(dataset, Reader("d", 0, "test")))
    await asyncio.sleep(0)
    (wait,) = node.waits.listed("d")
    assert (wait["waiting_for"], wait["peer"], wait["deadline_seconds"]) == ("producer", "test", 0.1)
    with pytest.raises(Unavailable, match=r"has no schema yet: no producer has come within 0\.1 s"):
        await asyncio.wait_for(waiting, 30)


async def test_a_reader_that_waits_for_the_disk_is_listed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = dataset_of(node, 40)
    for each in dataset.partition(0).frames():
        each.move_to(on_disk(bytes(40)))
    dataset.end_stream(dataset.partition(0))
    read, listed = SegmentSlice.read, list[dict[str, Any]]()

    def listing(place: SegmentSlice, **options: bool) -> bytes:
        listed.extend(node.waits.listed("d"))
        return read(place, **options)

    monkeypatch.setattr(SegmentSlice, "read", listing)
    async with aclosing(node.reads.read(dataset, Reader("d", 0, "test"), FrameRange())) as bursts:
        assert [len(burst) async for burst in bursts] == [1]
    assert [(wait["waiting_for"], wait["peer"]) for wait in listed] == [("disk", "test")]


async def test_dictionaries_come_before_the_frames_that_need_them_also_inside_a_burst(node: Node) -> None:
    dataset, _ = node.catalogue.create(CreateRequest("d"), SchemaMessage.of(TEXTS))
    partition = dataset.begin_stream(0)
    encoder = Encoder(TEXTS, max_message_bytes=1 << 20)
    builder = FrameBuilder(node.budget.metadata, "d", 0)
    arrays = [pa.array([f"{at}", f"{at}", "x", "y"]).dictionary_encode() for at in range(3)]
    batches = [pa.record_batch([array[at : at + 2]], schema=TEXTS) for array in arrays for at in (0, 2)]
    for checked in (each for batch in batches for each in encoder.encode([batch])):
        one = builder.add(checked, node.budget.frames.reserve(checked.kept_bytes))
        if one is not None:
            partition.publish(one)
    dataset.end_stream(partition)
    for burst_bytes in (0, 1000, 1 << 20):
        kinds: list[bool] = []
        reader = Reader("d", 0, "test", Pace(proven=True))
        read = node.reads.read(dataset, reader, FrameRange(), burst_bytes=burst_bytes)
        async with aclosing(read) as bursts:
            async for burst in bursts:
                kinds += [isinstance(outgoing.message, Frame) for outgoing in burst]
        assert kinds == [False, True, True] * 3


async def test_every_frame_comes_once_and_in_order_whether_in_ram_or_on_disk(node: Node) -> None:
    for seed in range(60):
        draw = random.Random(seed)
        dataset = dataset_of(node, name=f"d{seed}")
        partition = dataset.partition(0)
        count, late, burst_bytes = draw.randrange(30), draw.randrange(4), draw.choice([0, 1, 100, 250, 1000])
        gathering = Gathering(200, lambda first: 4 - first.index % 4) if draw.random() < 0.5 else None

        def publish(numbers: range, draw: random.Random = draw, partition: Partition = partition) -> None:
            for number in numbers:
                data = number.to_bytes(2, "big") + bytes(draw.randrange(300))
                one = frame(data, pool=node.budget.frames)
                partition.publish(one)
                if draw.random() < 0.4:
                    one.move_to(on_disk(data))

        publish(range(max(0, count - late)))
        if count <= late:
            publish(range(count))
            dataset.end_stream(partition)
        reader = Reader(dataset.name, 0, "test", Pace(proven=True))
        found: list[int] = []
        async with aclosing(
            node.reads.read(dataset, reader, FrameRange(), burst_bytes=burst_bytes, gathering=gathering)
        ) as bursts:
            async for burst in bursts:
                assert gathering is None or len(burst) <= 4
                found += [int.from_bytes(outgoing.data[:2], "big") for outgoing in burst]
                assert len(burst) == 1 or burst.size_bytes <= burst_bytes
                if partition.state is PartitionState.OPEN and len(found) == max(0, count - late):
                    publish(range(len(found), count))
                    dataset.end_stream(partition)
            if partition.state is PartitionState.OPEN:
                raise AssertionError("it ended before the partition")
        assert found == list(range(count))
        assert node.budget.sends.used_bytes == 0
