"""Several changes of one name at the same time: disk and catalogue see them in one order."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flight_server import config
from flight_server.datasets.dataset import Dataset
from flight_server.frames.message import NO_DICTIONARIES
from flight_server.kinds.seals import seal as seal_shuffle
from flight_server.kinds.stream import StreamSink
from flight_server.node import Node
from flight_server.protocol import CreateRequest, Kind, PutCommand, Retention, SealRequest, WriteMode
from flight_server.protocol.errors import Conflict, CorruptFrame, DataQuarantined, NotFound, Unavailable
from flight_server.records import DATABASE_NAME, DiskTrouble, Quarantined
from flight_server.server import Server
from flight_server.storage.opened_records import RECORDS_NAME
from flight_server.tiering.readback import frame_lost
from flight_server.tiering.recovery import recover
from tests.support.catalogues import expired
from tests.support.frames import dictionary
from tests.support.sealing import (
    SCHEMA,
    Held,
    bytes_after_restart,
    bytes_of,
    committed,
    create,
    durable_node,
    files,
    frame,
    frames_of,
    hold_commit,
    publish,
    refused_commits,
    restarted,
    seal,
)


async def written(node: Node, message: bytes) -> Dataset:
    """Dataset ``d``, created durable and sealed with this one frame."""
    dataset = create(node)
    sink = StreamSink(node.durability, PutCommand("d"), SCHEMA)
    sink.publish(0, frame(node, message))
    await sink.end()
    return dataset


def overwrite(node: Node, message: bytes, generation: str | None = None) -> StreamSink:
    sink = StreamSink(node.durability, PutCommand("d", mode="overwrite", generation=generation), SCHEMA)
    sink.publish(0, frame(node, message))
    return sink


async def held_end(
    node: Node, sink: StreamSink, monkeypatch: pytest.MonkeyPatch
) -> tuple[Held, asyncio.Future[Any]]:
    """The end of a put whose commit is held."""
    held = hold_commit(node, monkeypatch)
    end = asyncio.ensure_future(sink.end())
    await held.reached()
    return held, end


async def same_after_a_crash(node: Node, tmp_path: Path, expected: bytes) -> None:
    """The generation that has the name has it after a crash."""
    dataset = node.catalogue.find("d")
    assert await bytes_of(node.catalogue, dataset, 0) == [expected]
    await node.catalogue.disk.disposal.wait_idle()
    assert committed(tmp_path) == [dataset.generation]
    assert await bytes_after_restart(tmp_path) == [expected]


async def test_of_two_overwrites_the_one_that_is_sealed_last_is_the_one_that_comes_back(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(node, b"old")
    first, second = overwrite(node, b"first"), overwrite(node, b"second")
    held, first_end = await held_end(node, first, monkeypatch)
    second_end = asyncio.ensure_future(second.end())
    await asyncio.sleep(0.05)
    assert not second_end.done(), "it would be installed before and written after the other"
    held.go_on()
    await asyncio.gather(first_end, second_end)
    await same_after_a_crash(node, tmp_path, b"second")


async def test_an_overwrite_of_a_generation_that_is_gone_by_then_is_refused_and_leaves_nothing(
    node: Node, tmp_path: Path
) -> None:
    old = await written(node, b"old")
    winner, loser = overwrite(node, b"winner", old.generation), overwrite(node, b"loser", old.generation)
    await winner.end()
    with pytest.raises(
        Conflict, match=f"{old.generation} was to be .* at generation {winner.dataset.generation}"
    ):
        await loser.end()
    await same_after_a_crash(node, tmp_path, b"winner")


@pytest.mark.parametrize("of_a_generation", [True, False])
async def test_a_drop_waits_for_the_overwrite_that_is_just_being_installed_and_drops_what_was_asked_for(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_a_generation: bool
) -> None:
    """Of a name alone that is what the name leads to by then."""
    old = await written(node, b"old")
    held, end = await held_end(node, overwrite(node, b"new"), monkeypatch)
    drop = asyncio.ensure_future(node.catalogue.remove("d", old.generation if of_a_generation else None))
    await asyncio.sleep(0.05)
    assert not drop.done()
    held.go_on()
    await end
    if of_a_generation:
        with pytest.raises(NotFound, match="earlier generation"):
            await drop
        await same_after_a_crash(node, tmp_path, b"new")
    else:
        await drop
        assert node.catalogue.get("d") is None
        assert committed(tmp_path) == []


async def test_a_drop_that_is_given_up_takes_the_name_away_with_the_row(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(node, b"x")
    held = hold_commit(node, monkeypatch)
    drop = asyncio.ensure_future(node.catalogue.remove("d"))
    await held.reached()
    drop.cancel()
    held.go_on()
    with pytest.raises(asyncio.CancelledError):
        await drop
    assert committed(tmp_path) == []
    assert node.catalogue.get("d") is None


async def test_an_overwrite_whose_producer_leaves_while_it_is_committed_has_the_name(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(node, b"old")
    sink = overwrite(node, b"new")
    held, end = await held_end(node, sink, monkeypatch)
    end.cancel()
    await asyncio.sleep(0.01)
    held.go_on()
    with pytest.raises(asyncio.CancelledError):
        await end
    sink.abort(Conflict("the producer has left"))
    await same_after_a_crash(node, tmp_path, b"new")


async def test_the_end_of_the_server_lets_an_overwrite_that_is_being_committed_have_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load({"port": 0, "http_port": -1, "data_dir": tmp_path / "data"})
    async with Server(settings) as server:
        await written(server.node, b"old")
        held, end = await held_end(server.node, overwrite(server.node, b"new"), monkeypatch)
        asyncio.get_running_loop().call_later(0.2, held.go_on)
    await end
    async with Server(settings) as server:
        assert await bytes_of(server.catalogue, server.catalogue.find("d"), 0) == [b"new"]
        assert server.catalogue.disk.quarantine.entries == []


async def test_a_row_that_could_not_be_deleted_before_the_server_ended_keeps_its_files(
    node: Node, tmp_path: Path
) -> None:
    dataset = await written(node, b"x")
    await node.catalogue.disk.end_commits()
    node.catalogue.drop("d")
    del dataset
    await node.catalogue.disk.disposal.wait_idle()
    assert await bytes_after_restart(tmp_path) == [b"x"]


async def test_a_partition_that_fails_while_its_overwrite_is_committed_is_damage_of_the_new_generation(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(node, b"old")
    sink = overwrite(node, b"new")
    held, end = await held_end(node, sink, monkeypatch)
    sink.dataset.partition(0).corrupt(CorruptFrame("another checksum"), 0)
    held.go_on()
    await end
    assert node.catalogue.find("d") is sink.dataset
    assert sink.dataset.sealed
    (entry,) = node.catalogue.disk.quarantine.entries
    assert (entry.key, entry.served) == (("d", sink.dataset.generation), True)
    await node.catalogue.disk.disposal.wait_idle()
    assert entry.files == tuple(file.name for file in files(tmp_path))
    assert await bytes_after_restart(tmp_path) == [b"new"]


async def test_a_refused_overwrite_that_a_crash_could_make_count_keeps_its_files_until_it_cannot(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(node, b"old")
    (old,) = files(tmp_path)
    with refused_commits(node):
        monkeypatch.setattr(node.catalogue.records, "in_doubt", True)
        sink = overwrite(node, b"new")
        with pytest.raises(Unavailable):
            await sink.end()
        sink.abort(Conflict("it was refused"))
        del sink
        await node.catalogue.disk.disposal.wait_idle()
        assert len(files(tmp_path)) > 1
    await node.catalogue.records.commit(lambda _: None)
    node.catalogue.disk.disposal.try_again()
    await node.catalogue.disk.disposal.wait_idle()
    assert files(tmp_path) == [old]


async def test_an_overwrite_after_a_drop_takes_the_name_and_one_of_a_generation_does_not(
    node: Node, tmp_path: Path
) -> None:
    old = await written(node, b"old")
    of_any, of_old = overwrite(node, b"new"), overwrite(node, b"too late", old.generation)
    await node.catalogue.remove("d")
    assert committed(tmp_path) == []
    with pytest.raises(Conflict, match="is gone now"):
        await of_old.end()
    await of_any.end()
    await same_after_a_crash(node, tmp_path, b"new")


async def test_an_overwrite_that_is_not_durable_does_not_replace_what_became_durable_meanwhile(
    node: Node, tmp_path: Path
) -> None:
    node.catalogue.create(CreateRequest("d"), SCHEMA)
    put = overwrite(node, b"not durable")
    request = CreateRequest("d", kind=Kind.SHUFFLE, mode=WriteMode.OVERWRITE, write="w")
    staged, _ = node.catalogue.stage(request, SCHEMA)
    await node.catalogue.remove("d")
    await written(node, b"durable")
    with pytest.raises(Conflict, match="became durable"):
        await put.end()
    with pytest.raises(Conflict, match="became durable"):
        await seal_shuffle(node.durability, staged, SealRequest("d", staged.generation, {}))
    await same_after_a_crash(node, tmp_path, b"durable")


async def test_a_lease_that_ends_during_an_overwrite_takes_nothing_of_the_new_generation(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await written(node, b"old")
    held, end = await held_end(node, overwrite(node, b"new"), monkeypatch)
    old.lease_seconds = 0
    assert expired(node.catalogue) == []
    held.go_on()
    await end
    expired(node.catalogue)
    await same_after_a_crash(node, tmp_path, b"new")


def end(dataset: Dataset, ending: str) -> None:
    """Let its lease, or its retention, end now."""
    if ending == "lease":
        dataset.lease_seconds = 0
    else:
        dataset.retention = Retention(seconds=0)


@pytest.mark.parametrize("ending", ["lease", "retention"])
async def test_what_has_expired_is_found_until_it_cannot_come_back(
    node: Node, tmp_path: Path, ending: str
) -> None:
    dataset = await written(node, b"x")
    end(dataset, ending)
    with refused_commits(node):
        for _ in range(2):  # begins the deletion, and finds it refused
            assert expired(node.catalogue) == []
            with suppress(DiskTrouble):
                await node.catalogue.records.commit(lambda _: None)
        assert node.catalogue.find("d") is dataset
        assert committed(tmp_path) == [dataset.generation]
    assert expired(node.catalogue) == []
    await node.catalogue.records.commit(lambda _: None)
    assert committed(tmp_path) == []
    dataset.lease_seconds = None  # renewed, but it is on its way out
    for renewal in (
        lambda: node.catalogue.find("d"),
        lambda: node.catalogue.create(CreateRequest("d", durable=True), SCHEMA),
        lambda: node.catalogue.stage(CreateRequest("d", Kind.SHUFFLE, mode=WriteMode.NEW, write="w"), SCHEMA),
    ):
        with pytest.raises(Unavailable, match=r"ended with its .* and is being deleted"):
            renewal()
    assert expired(node.catalogue) == [dataset]
    assert node.catalogue.get("d") is None
    assert dataset.dropped is (ending == "lease")


async def test_a_lease_that_is_renewed_while_the_disk_refuses_the_deletion_goes_on(
    node: Node, tmp_path: Path
) -> None:
    dataset = await written(node, b"x")
    dataset.lease_seconds = 0
    with refused_commits(node):
        expired(node.catalogue)
        with pytest.raises(DiskTrouble):
            await node.catalogue.records.commit(lambda _: None)
    dataset.lease_seconds = None
    for _ in range(2):
        assert expired(node.catalogue) == []
        await node.catalogue.records.commit(lambda _: None)
    await same_after_a_crash(node, tmp_path, b"x")


@pytest.mark.parametrize("ending", ["lease", "retention", "overwrite", "drop"])
async def test_an_entry_of_damage_stays_in_the_quarantine_until_a_drop(
    node: Node, tmp_path: Path, ending: str
) -> None:
    dataset = await written(node, b"x")
    quarantine = node.catalogue.disk.quarantine
    quarantine.note(Quarantined.now("d", dataset.generation, "a bit has flipped", served=True))
    if ending == "overwrite":
        await overwrite(node, b"new").end()
    elif ending == "drop":
        await node.catalogue.remove("d")
    else:
        end(dataset, ending)
        expired(node.catalogue)
        await node.catalogue.records.commit(lambda _: None)
        assert expired(node.catalogue) == [dataset]
        with pytest.raises(DataQuarantined, match="a bit has flipped"):
            node.catalogue.find("d")
    assert len(quarantine.entries) == (ending != "drop")
    with closing(restarted(tmp_path)) as after:
        assert len(after.disk.quarantine.entries) == (ending != "drop")


@pytest.mark.parametrize("ending", ["overwrite", "drop"])
async def test_damage_that_is_met_while_the_row_is_being_deleted_keeps_the_files_that_its_entry_names(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    dataset = await written(node, b"x")
    (file,) = files(tmp_path)
    held = hold_commit(node, monkeypatch)
    end = asyncio.ensure_future(
        overwrite(node, b"new").end() if ending == "overwrite" else node.catalogue.remove("d")
    )
    await held.reached()
    frame_lost(
        node.catalogue.disk.quarantine, dataset, dataset.partition(0), 0, CorruptFrame("another checksum")
    )
    held.go_on()
    await end
    del dataset, end
    await node.catalogue.disk.disposal.wait_idle()
    await node.catalogue.records.commit(lambda _: None)
    with closing(restarted(tmp_path)) as after:
        entries = after.disk.quarantine.entries
        assert [each.files for each in entries] == ([] if ending == "drop" else [(file.name,)])
        assert file.exists() is (ending == "overwrite")


async def test_a_drop_of_a_name_returns_when_earlier_rows_of_it_are_deleted(
    node: Node, tmp_path: Path
) -> None:
    old = await written(node, b"old")
    with refused_commits(node):
        old.partition(0).corrupt(CorruptFrame("another checksum"), 0)
        node.catalogue.create(CreateRequest("d"), SCHEMA)  # replaces the failed one at once
        with pytest.raises(Unavailable, match="not dropped"):
            await node.catalogue.remove("d")
        assert node.catalogue.get("d") is not None
    await node.catalogue.remove("d")
    assert committed(tmp_path) == []
    assert node.catalogue.get("d") is None


async def test_a_shuffle_that_a_later_run_replaces_does_not_come_back(node: Node, tmp_path: Path) -> None:
    shuffles = node.kinds[Kind.SHUFFLE]
    requests = [
        CreateRequest("d", Kind.SHUFFLE, durable=True, generation=f"0123456789abcd{run:02}") for run in (1, 2)
    ]
    first, _ = await shuffles.create(requests[0], SCHEMA)
    await seal_shuffle(node.durability, first, SealRequest("d", first.generation, {}))
    assert committed(tmp_path) == [first.generation]
    second, _ = await shuffles.create(requests[1], SCHEMA)
    assert node.catalogue.find("d") is second
    assert committed(tmp_path) == []


async def test_readers_of_a_recovered_dataset_that_was_overwritten_finish_with_partitions_not_read_before(
    tmp_path: Path,
) -> None:
    async with durable_node(tmp_path) as node:
        old = create(node, partitions=2)
        for index in range(2):
            publish(node, old, index, [b"old %d" % index])
            await node.durability.persist(old, [index], partial(seal, old, index))
    async with durable_node(tmp_path) as node:
        recover(node.catalogue)
        old = node.catalogue.find("d")
        assert await bytes_of(node.catalogue, old, 0) == [b"old 0"]
        request = CreateRequest("d", Kind.SHUFFLE, durable=True, mode=WriteMode.OVERWRITE, write="w")
        new, _ = node.catalogue.stage(request, SCHEMA)
        await seal_shuffle(node.durability, new, SealRequest("d", new.generation, {}))
        assert await bytes_of(node.catalogue, old, 1) == [b"old 1"]
        assert committed(tmp_path) == [new.generation]
        del old
        await node.catalogue.disk.disposal.wait_idle()
        await node.catalogue.records.commit(lambda _: None)
        with closing(sqlite3.connect(tmp_path / RECORDS_NAME / DATABASE_NAME)) as connection:
            assert connection.execute("SELECT count(*) FROM dataset").fetchone() == (1,)
        assert files(tmp_path) == []


async def test_a_commit_that_is_tried_again_has_the_dictionaries_of_all_partitions(tmp_path: Path) -> None:
    async with durable_node(tmp_path, patience_seconds=60) as node:
        dataset = create(node, partitions=2)
        for index, data in enumerate((b"one dictionary", b"another one")):
            message = dictionary(data, pool=node.budget.frames)
            state = NO_DICTIONARIES.replaced(0, message, delta=False)
            dataset.begin_stream(index).publish(frame(node, b"batch", state))
        await node.durability.persist(dataset, [0], lambda: None)
        with refused_commits(node):
            sealing = asyncio.ensure_future(node.durability.persist(dataset, [1], lambda: None))
            await asyncio.sleep(0.1)
        await sealing
        with closing(restarted(tmp_path)) as after:
            found = after.find("d")
            states = [
                each.dictionaries for index in range(2) for each in await frames_of(after, found, index)
            ]
            assert [state.by_id[0][0].read_back() for state in states] == [b"one dictionary", b"another one"]
