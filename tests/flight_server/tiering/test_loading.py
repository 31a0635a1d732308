"""The first reads of partitions that were recovered, whose records are loaded then."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from flight_server.datasets import Dataset
from flight_server.node import Node
from flight_server.protocol import PlanRequest, Retention
from flight_server.protocol.errors import CorruptFrame, DatasetDropped, OutOfBudget, ReadTrouble
from flight_server.records import DATABASE_NAME, DiskTrouble
from flight_server.storage.opened_records import RECORDS_NAME
from flight_server.tiering import Reader
from flight_server.tiering import loading as loading_module
from flight_server.tiering.recovery import delete_garbage, recover
from flight_server.transfer import FrameRange, plan_json
from tests.support.catalogues import expired
from tests.support.sealing import Held, create, durable_node, publish, seal

FRAMES = 600


async def written(directory: Path, *, readers: int | None = None) -> None:
    """Dataset ``d`` with two partitions, and a server that has ended."""
    async with durable_node(directory) as node:
        dataset = create(node, partitions=2, retention=Retention(readers=readers))
        for index in range(2):
            publish(node, dataset, index, [b"%d of %d" % (number, index) for number in range(FRAMES)])
            await node.durability.persist(dataset, [index], partial(seal, dataset, index))


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """The next server's."""
    await written(tmp_path)
    async with durable_node(tmp_path) as node:
        recover(node.catalogue)
        delete_garbage(node.catalogue)
        yield node


async def read(node: Node, dataset: Dataset, index: int, start: int = 0) -> list[bytes]:
    messages: list[bytes] = []
    async with aclosing(node.reads.read(dataset, Reader("d", index, "test"), FrameRange(start))) as bursts:
        async for burst in bursts:
            messages += [each.data for each in burst]
    return messages


async def test_a_recovered_partition_has_its_totals_and_its_records_once_it_is_read(node: Node) -> None:
    dataset = node.catalogue.find("d")
    used_bytes = node.budget.metadata.pool.used_bytes
    assert [each.totals.frames for each in dataset.partitions()] == [FRAMES, FRAMES]
    assert await read(node, dataset, 1, start=550) == [b"%d of 1" % number for number in range(550, FRAMES)]
    assert [each.loaded for each in dataset.partitions()] == [False, True]
    assert node.budget.metadata.pool.used_bytes > used_bytes


async def test_a_plan_loads_only_partitions_that_are_cut(node: Node) -> None:
    dataset = node.catalogue.find("d")
    first, second = (each.totals.bytes for each in dataset.partitions())
    plan = await plan_json(dataset, PlanRequest("d", max(first, second)), node.reads.loading)
    assert json.loads(plan)["pieces"] == [[0, 0, FRAMES, first], [1, 0, FRAMES, second]]
    assert [each.loaded for each in dataset.partitions()] == [False, False]
    plan = await plan_json(dataset, PlanRequest("d", 1000), node.reads.loading)
    assert plan.count(b"[1,") > 1
    assert [each.loaded for each in dataset.partitions()] == [True, True]


async def test_readers_that_come_first_together_load_a_partition_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = node.catalogue.find("d")
    held = Held(loading_module, "_read", monkeypatch)
    first, second = (asyncio.ensure_future(read(node, dataset, 0)) for _ in range(2))
    await held.reached()
    monkeypatch.setattr(loading_module, "_read", None)  # a second call would fail
    first.cancel()  # the other one does not notice
    held.go_on()
    assert len(await second) == FRAMES
    assert first.cancelled() or await asyncio.wait([first])


async def test_records_that_have_no_room_are_refused_and_loaded_when_there_is_some(node: Node) -> None:
    dataset, pool = node.catalogue.find("d"), node.budget.metadata.pool
    assert pool.limit_bytes is not None
    room = pool.reserve(pool.limit_bytes - pool.used_bytes - 100)
    with pytest.raises(OutOfBudget, match="600 frames"):
        await read(node, dataset, 0)
    room.free()
    assert len(await read(node, dataset, 0)) == FRAMES


async def test_an_index_that_the_disk_does_not_give_is_read_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = node.catalogue.find("d")

    def refuse(*_: object) -> None:
        raise DiskTrouble(os.strerror(errno.EIO), full=False)

    with monkeypatch.context() as patch:
        patch.setattr(node.catalogue.records, "read", refuse)
        with pytest.raises(ReadTrouble, match="its index cannot be read"):
            await read(node, dataset, 0)
    assert len(await read(node, dataset, 0)) == FRAMES


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM frames WHERE partition = 0",
        "UPDATE frames SET records = zeroblob(length(records)) WHERE partition = 0",
    ],
)
async def test_a_damaged_index_costs_its_partition_alone_and_is_named_in_the_quarantine(
    node: Node, tmp_path: Path, damage: str
) -> None:
    dataset = node.catalogue.find("d")
    with closing(
        sqlite3.connect(tmp_path / RECORDS_NAME / DATABASE_NAME, isolation_level=None)
    ) as connection:
        connection.execute(damage)
    for _ in range(2):
        with pytest.raises(CorruptFrame, match="the index of its frames is damaged"):
            await read(node, dataset, 0)
    assert len(await read(node, dataset, 1)) == FRAMES
    (entry,) = node.catalogue.disk.quarantine.entries
    assert (entry.dataset, entry.generation, entry.served) == ("d", dataset.generation, True)


async def test_a_drop_while_it_is_loaded_ends_the_reader_with_its_reason(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = node.catalogue.find("d")
    held = Held(loading_module, "_read", monkeypatch)
    reading = asyncio.ensure_future(read(node, dataset, 0))
    await held.reached()
    await node.catalogue.remove("d")
    held.go_on()
    with pytest.raises(DatasetDropped, match="was dropped"):
        await reading
    assert node.catalogue.disk.quarantine.entries == []


async def test_a_row_that_a_drop_has_deleted_is_no_damage(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = node.catalogue.find("d")
    held = Held(node.catalogue.records, "_after_commit", monkeypatch)
    drop = asyncio.ensure_future(node.catalogue.remove("d"))
    await held.reached()  # the commit is made, and the dataset is not taken away yet
    reading = asyncio.ensure_future(read(node, dataset, 0))
    await asyncio.sleep(0.1)
    assert not reading.done()
    held.go_on()
    with pytest.raises(DatasetDropped, match="was dropped"):
        await reading
    await drop
    assert node.catalogue.disk.quarantine.entries == []


async def test_a_row_that_the_end_of_a_lease_has_deleted_is_no_damage(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asyncio.Event()
    taken_away = loading_module._taken_away

    async def noted(dataset: Dataset) -> None:
        waits.set()
        await taken_away(dataset)

    monkeypatch.setattr(loading_module, "_taken_away", noted)
    dataset = node.catalogue.find("d")
    dataset.lease_seconds = 0
    assert expired(node.catalogue) == []
    await node.catalogue.records.commit(lambda _: None)
    reading = asyncio.ensure_future(read(node, dataset, 0))
    await waits.wait()
    assert expired(node.catalogue) == [dataset]
    with pytest.raises(DatasetDropped, match="ended with its lease"):
        await reading
    assert node.catalogue.disk.quarantine.entries == []


async def test_a_reader_does_not_wait_for_ever_for_the_end_of_a_dataset(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = node.catalogue.find("d")
    monkeypatch.setattr(loading_module, "TAKEN_AWAY_SECONDS", 0.01)
    dataset.lease_seconds = 0
    assert expired(node.catalogue) == []
    await node.catalogue.records.commit(lambda _: None)
    with pytest.raises(ReadTrouble, match="is being deleted"):
        await read(node, dataset, 0)


async def test_readers_count_for_a_retention_that_goes_on_after_a_restart(tmp_path: Path) -> None:
    await written(tmp_path, readers=1)
    async with durable_node(tmp_path) as node:
        recover(node.catalogue)
        partition = node.catalogue.find("d").partition(0)
        reads = node.reads.read(node.catalogue.find("d"), Reader("d", 0, "test", name="a"), FrameRange())
        async with aclosing(reads) as bursts:
            await anext(bursts)
            partition.acknowledge("a", 100, now=0)
        assert (partition.frames_left, partition.table.first) == (FRAMES - 100, 100)
