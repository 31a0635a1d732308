"""What happens to a dataset while it is being sealed: spilling, loss, a bug."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from flight_server.concurrency.broadcast_queue import EndOfQueue
from flight_server.datasets.dataset import Dataset
from flight_server.kinds.seals import seal as seal_shuffle
from flight_server.node import Node
from flight_server.protocol import Commit, CreateRequest, Kind, SealRequest, WriteMode
from flight_server.protocol.errors import CorruptFrame, DatasetDropped
from flight_server.storage.segments import SegmentWriter
from flight_server.tiering import durability
from tests.support.queues import take_one
from tests.support.sealing import (
    SCHEMA,
    Held,
    bytes_after_restart,
    committed,
    create,
    durable_node,
    frame,
    publish,
    seal,
    staged,
)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with durable_node(tmp_path) as node:
        yield node


async def test_frames_that_the_spiller_moves_during_the_seal_are_sealed_where_they_are(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [b"%d" % number for number in range(8)]
    dataset = create(node)
    publish(node, dataset, 0, messages)
    frames = list(dataset.partition(0).frames())
    assert dataset.writer is not None
    # A writer of its own, because the seal's is held.
    apart = node.catalogue.disk.writer("d", dataset.generation, dataset.kind, durable=True)
    assert apart is not None
    spilled = dict(zip(frames[:6], apart.append(messages[:6]), strict=True))
    held = Held(SegmentWriter, "append", monkeypatch)
    monkeypatch.setattr(durability, "BATCH_BYTES", 2)  # two frames at a time
    sealing = asyncio.ensure_future(node.durability.persist(dataset, [0], lambda: None))
    await held.reached()
    for each in (0, 2, 3, 5):  # of the batch on its way one, all of the next one, and half of the third
        frames[each].move_to(spilled[frames[each]])
    held.go_on()
    await sealing
    assert all(frames[each].slice is spilled[frames[each]] for each in (0, 2, 3, 5))
    assert [each.read_back() for each in frames] == messages
    assert committed(tmp_path) == [dataset.generation]


async def test_a_partition_that_is_lost_during_the_seal_is_not_sealed_as_an_empty_one(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(node, partitions=2)
    for index in (0, 1):
        publish(node, dataset, index, [b"x"])
    await node.durability.persist(dataset, [0], lambda: None)
    held = Held(SegmentWriter, "append", monkeypatch)
    sealing = asyncio.ensure_future(node.durability.persist(dataset, [1], lambda: None))
    await held.reached()
    dataset.partition(0).corrupt(CorruptFrame("another checksum"), 0)
    held.go_on()
    with pytest.raises(CorruptFrame):
        await sealing
    assert committed(tmp_path) == []


async def test_a_bug_in_one_partition_s_seal_leaves_the_other_partitions_as_they_are(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(node, partitions=2)
    for index in (0, 1):
        publish(node, dataset, index, [b"frame of %d" % index])
    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "append", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await node.durability.persist(dataset, [1], lambda: None)
    for index in (0, 1):
        await node.durability.persist(dataset, [index], lambda: None)
        seal(dataset, index)
    assert await bytes_after_restart(tmp_path, 1) == [b"frame of 1"]


async def test_a_shuffle_that_is_replaced_during_its_seal_is_whole_for_its_readers_and_not_on_disk(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(node, kind=Kind.SHUFFLE)
    attempt = dataset.begin_attempt(0, "a")
    attempt.publish(0, frame(node, b"x"))
    dataset.commit(attempt, Commit(1, 1))
    held = Held(SegmentWriter, "append", monkeypatch)
    sealing = asyncio.ensure_future(seal_shuffle(node.durability, dataset, SealRequest("d")))
    new = node.catalogue.prepare(CreateRequest("d", durable=True), SCHEMA)
    reader = dataset.partition(0).subscribe()
    await held.reached()
    node.catalogue.install(new)
    held.go_on()
    await sealing
    assert take_one(reader).rows == 1
    with pytest.raises(EndOfQueue):
        take_one(reader)
    await node.catalogue.disk.disposal.wait_idle()
    assert committed(tmp_path) == []


async def test_a_staged_seal_that_is_repeated_does_not_take_the_name_from_a_later_write(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, request = staged(node, WriteMode.OVERWRITE, "first")
    second, _ = staged(node, WriteMode.OVERWRITE, "second")
    held = Held(SegmentWriter, "append", monkeypatch)
    sealing = [asyncio.ensure_future(seal_shuffle(node.durability, first, request)) for _ in range(2)]
    await held.reached()

    def taken(dataset: Dataset) -> None:
        node.catalogue.take_name = original  # type: ignore[method-assign]
        original(dataset)
        original(second)  # between the two calls that seal the first one

    original = node.catalogue.take_name
    monkeypatch.setattr(node.catalogue, "take_name", taken)
    held.go_on()
    await asyncio.gather(*sealing)
    assert node.catalogue.find("d") is second


async def test_a_staged_write_that_is_dropped_during_its_seal_does_not_take_the_name(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, request = staged(node, WriteMode.OVERWRITE)
    held = Held(SegmentWriter, "append", monkeypatch)
    sealing = asyncio.ensure_future(seal_shuffle(node.durability, dataset, request))
    await held.reached()
    await node.catalogue.remove("d", dataset.generation, staged=True)
    held.go_on()
    with pytest.raises(DatasetDropped):
        await sealing
    assert node.catalogue.get("d") is None
    await node.catalogue.disk.disposal.wait_idle()
    assert committed(tmp_path) == []
