"""What happens to a durable dataset while it is being sealed: spilling, loss, a bug, other writes of its name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flight_server.concurrency.broadcast_queue import EndOfQueue
from flight_server.datasets.dataset import Dataset
from flight_server.kinds.seals import seal as seal_shuffle
from flight_server.kinds.stream import StreamSink
from flight_server.node import Node
from flight_server.protocol import (
    Commit,
    CreateRequest,
    Kind,
    PutCommand,
    Retention,
    SealRequest,
    WriteMode,
)
from flight_server.protocol.errors import AlreadyExists, Conflict, CorruptFrame, DatasetDropped, NotFound
from flight_server.storage.segments import SegmentWriter
from flight_server.tiering import durability
from tests.support.queues import take_one
from tests.support.sealing import (
    SCHEMA,
    Held,
    bytes_after_restart,
    committed,
    create,
    frame,
    hold_commit,
    publish,
    seal,
    staged,
)


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


async def test_frames_that_are_sealed_while_the_spiller_writes_them_leave_ram_and_stay_where_they_are(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(node)
    publish(node, dataset, 0, [b"one", b"two"])
    frames = list(dataset.partition(0).frames())
    # A writer of its own, because the spiller's is held.
    apart = node.catalogue.disk.writer("d", dataset.generation, dataset.kind, durable=True)
    assert apart is not None
    sealed = apart.append([b"one", b"two"])
    held = Held(SegmentWriter, "append", monkeypatch)
    others = node.budget.frames.reserve(node.budget.frames.limit_bytes or 0)
    spilling = asyncio.ensure_future(node.spiller.run())
    node.spiller.poke()
    await held.reached()
    for frame_, place in zip(frames, sealed, strict=True):
        frame_.place(place)
    others.free()
    held.go_on()
    async with asyncio.timeout(30):
        while any(each.resident for each in frames):  # noqa: ASYNC110  # the spiller has no event for a move
            await asyncio.sleep(0.005)
    assert [each.slice for each in frames] == sealed
    spilling.cancel()
    await asyncio.wait([spilling])


async def test_a_stream_whose_lease_ends_while_it_is_sealed_stays(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(node, lease_seconds=1.0)
    publish(node, dataset, 0, [b"x"])
    held = hold_commit(node, monkeypatch)
    sealing = asyncio.ensure_future(node.durability.persist(dataset, [0], lambda: seal(dataset, 0)))
    await held.reached()
    dataset.used_at -= 2.0
    assert not any(node.catalogue.expire())
    held.go_on()
    await sealing
    assert not any(node.catalogue.expire()), "its lease begins anew"
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


async def held_seal(
    node: Node, dataset: Dataset, request: SealRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Held, asyncio.Task[Any]]:
    """A seal that is just being committed."""
    held = hold_commit(node, monkeypatch)
    sealing = asyncio.ensure_future(seal_shuffle(node.durability, dataset, request))
    await held.reached()
    return held, sealing


async def put(node: Node, message: bytes) -> Dataset:
    """What a put makes that is not durable, acknowledged."""
    sink = StreamSink(node.durability, PutCommand("d"), SCHEMA)
    sink.publish(0, frame(node, message))
    await sink.end()
    return sink.dataset


@pytest.mark.parametrize(("mode", "refusal"), [(WriteMode.NEW, AlreadyExists), (WriteMode.APPEND, Conflict)])
async def test_a_put_that_was_acknowledged_during_the_seal_keeps_the_name_and_the_write_may_be_sealed_later(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: WriteMode, refusal: type[Exception]
) -> None:
    dataset, request = staged(node, mode)
    held, sealing = await held_seal(node, dataset, request, monkeypatch)
    meanwhile = await put(node, b"meanwhile")
    held.go_on()
    with pytest.raises(refusal):
        await sealing
    assert node.catalogue.find("d") is meanwhile
    await node.catalogue.records.commit(lambda _: None)
    assert committed(tmp_path) == []
    node.catalogue.drop("d")
    assert (await seal_shuffle(node.durability, dataset, request)).generation == dataset.generation
    assert await bytes_after_restart(tmp_path) == [b"w"]


async def test_a_drop_of_a_staged_write_waits_for_its_commit_and_is_refused(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, request = staged(node, WriteMode.NEW)
    held, sealing = await held_seal(node, dataset, request, monkeypatch)
    dropping = asyncio.ensure_future(node.catalogue.remove("d", dataset.generation, staged=True))
    await asyncio.sleep(0.05)
    assert not dropping.done()
    held.go_on()
    await sealing
    with pytest.raises(NotFound, match="was sealed"):
        await dropping
    assert committed(tmp_path) == [dataset.generation]


async def test_a_staged_overwrite_keeps_what_the_request_leaves_open(node: Node) -> None:
    made = CreateRequest("d", Kind.SHUFFLE, durable=True, lease_seconds=77.0, retention=Retention(readers=2))
    node.catalogue.create(made, SCHEMA)
    dataset, request = staged(node, WriteMode.OVERWRITE)
    await seal_shuffle(node.durability, dataset, request)
    assert dataset.durable
    assert (dataset.lease_seconds, dataset.retention) == (77.0, Retention(readers=2))
