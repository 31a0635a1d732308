"""Several changes of one name at the same time: disk and catalogue see them in one order."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from flight_server.datasets.dataset import Dataset
from flight_server.frames.message import NO_DICTIONARIES, DictionaryMessage, Frame, Payload
from flight_server.kinds.seals import seal
from flight_server.kinds.stream import StreamSink
from flight_server.node import Node
from flight_server.protocol import CreateRequest, Kind, PutCommand, Retention, SealRequest, WriteMode
from flight_server.protocol.checksums import crc32c
from flight_server.protocol.errors import Conflict, DataQuarantined, NotFound, Unavailable
from flight_server.storage.durable_files import MANIFEST_NAME
from flight_server.storage.quarantine import DAMAGE_NAME, Quarantined
from tests.support.catalogues import expired
from tests.support.sealing import SCHEMA, Held, bytes_of, create, durable_node, frame, manifests, restarted


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with durable_node(tmp_path) as node:
        yield node


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


async def held_end(sink: StreamSink, monkeypatch: pytest.MonkeyPatch) -> tuple[Held, asyncio.Future[Any]]:
    """The end of a put whose commit is held."""
    held = Held(sink.dataset.files, "commit", monkeypatch)
    end = asyncio.ensure_future(sink.end())
    await held.reached()
    return held, end


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def _frames(dataset: Dataset) -> list[Frame]:
    return [each for index in range(dataset.partition_count) for each in dataset.partition(index).frames()]


async def same_after_a_crash(node: Node, tmp_path: Path, expected: bytes) -> None:
    """The generation that has the name has it after a crash, now and when all files are deleted."""
    assert [each.read_back() for each in node.catalogue.find("d").partition(0).frames()] == [expected]
    await node.catalogue.disk.disposal.settled()
    assert len(manifests(tmp_path)) == 1
    found = restarted(tmp_path).find("d")
    assert found.generation == node.catalogue.find("d").generation
    assert bytes_of(found, 0) == [expected]


async def test_of_two_overwrites_the_one_that_is_sealed_last_is_the_one_that_comes_back(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(node, b"old")
    first, second = overwrite(node, b"first"), overwrite(node, b"second")
    held, first_end = await held_end(first, monkeypatch)
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


async def test_a_drop_waits_for_the_overwrite_that_is_just_being_installed_and_drops_what_was_asked_for(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await written(node, b"old")
    held, end = await held_end(overwrite(node, b"new"), monkeypatch)
    drop = asyncio.ensure_future(node.catalogue.remove("d", old.generation))
    await asyncio.sleep(0.05)
    assert not drop.done()
    held.go_on()
    await end
    with pytest.raises(NotFound, match="earlier generation"):
        await drop
    await same_after_a_crash(node, tmp_path, b"new")


async def test_a_drop_of_a_name_that_waits_for_an_overwrite_drops_what_the_name_leads_to_by_then(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(node, b"old")
    held, end = await held_end(overwrite(node, b"new"), monkeypatch)
    drop = asyncio.ensure_future(node.catalogue.remove("d"))
    await asyncio.sleep(0.05)
    held.go_on()
    await asyncio.gather(end, drop)
    assert node.catalogue.get("d") is None
    assert manifests(tmp_path) == []


async def test_a_drop_that_is_given_up_takes_the_name_away_with_the_files(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = await written(node, b"x")
    held = Held(dataset.files, "forget", monkeypatch)
    drop = asyncio.ensure_future(node.catalogue.remove("d"))
    await held.reached()
    drop.cancel()
    held.go_on()
    with pytest.raises(asyncio.CancelledError):
        await drop
    assert manifests(tmp_path) == []
    assert node.catalogue.get("d") is None


async def test_an_overwrite_after_a_drop_takes_the_name_and_one_of_a_generation_does_not(
    node: Node, tmp_path: Path
) -> None:
    old = await written(node, b"old")
    of_any, of_old = overwrite(node, b"new"), overwrite(node, b"too late", old.generation)
    await node.catalogue.remove("d")
    assert manifests(tmp_path) == []
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
        await seal(node.durability, staged, SealRequest("d", staged.generation, {}))
    await same_after_a_crash(node, tmp_path, b"durable")


async def test_a_lease_that_ends_during_an_overwrite_takes_nothing_of_the_new_generation(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await written(node, b"old")
    held, end = await held_end(overwrite(node, b"new"), monkeypatch)
    old.lease_seconds = 0
    assert expired(node.catalogue) == []
    held.go_on()
    await end
    expired(node.catalogue)
    await same_after_a_crash(node, tmp_path, b"new")


@pytest.mark.parametrize("ending", ["lease", "retention"])
async def test_what_has_expired_is_found_until_it_cannot_come_back(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    dataset = await written(node, b"x")
    if ending == "lease":
        dataset.lease_seconds = 0
    else:
        dataset.retention = Retention(seconds=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing(errno.EROFS))
        expired(node.catalogue)
        await node.catalogue.disk.disposal.settled()
        assert expired(node.catalogue) == []
        assert node.catalogue.find("d") is dataset
    dataset.lease_seconds = None  # renewed, but it is on its way out
    node.catalogue.disk.disposal.forget_again()
    await node.catalogue.disk.disposal.settled()
    assert manifests(tmp_path) == []
    assert expired(node.catalogue) == [dataset]
    assert node.catalogue.get("d") is None
    assert dataset.dropped is (ending == "lease")


@pytest.mark.parametrize("ending", ["lease", "retention"])
async def test_what_has_expired_is_kept_aside_if_it_is_damaged(node: Node, ending: str) -> None:
    dataset = await written(node, b"x")
    files = dataset.files
    assert files is not None
    said = Quarantined.now("d", dataset.generation, files.directory, "a bit has flipped")
    node.catalogue.disk.disposal.damaged(files, said)
    if ending == "lease":
        dataset.lease_seconds = 0
    else:
        dataset.retention = Retention(seconds=0)
    expired(node.catalogue)
    await node.catalogue.disk.disposal.settled()
    assert expired(node.catalogue) == [dataset]
    with pytest.raises(DataQuarantined, match="a bit has flipped"):
        node.catalogue.find("d")
    (aside,) = node.catalogue.disk.disposal.quarantine
    assert (Path(aside.path) / MANIFEST_NAME).is_file()
    assert not files.directory.exists()


@pytest.mark.parametrize("note", [b"torn", b"[" * 100_000], ids=["torn", "nested"])
async def test_a_generation_whose_note_of_damage_cannot_be_read_is_kept_aside(
    node: Node, tmp_path: Path, note: bytes
) -> None:
    old = await written(node, b"old")
    assert old.files is not None
    directory, generation, copy = old.files.directory, old.generation, tmp_path / "copy"
    shutil.copytree(directory, copy)
    del old
    await overwrite(node, b"new").end()
    await node.catalogue.disk.disposal.settled()
    assert not directory.exists()
    copy.rename(directory)  # as after a crash before it was deleted
    (directory / DAMAGE_NAME).write_bytes(note)
    with closing(restarted(tmp_path)) as catalogue:
        (aside,) = catalogue.disk.disposal.quarantine
        assert (aside.dataset, aside.generation) == ("d", generation)
        assert "cannot be read" in aside.reason
        assert (Path(aside.path) / MANIFEST_NAME).is_file()
        assert [each.read_back() for each in catalogue.find("d").partition(0).frames()] == [b"new"]


class Killed(BaseException):
    """The process ends."""


@pytest.mark.parametrize("damaged", ["manifest", "segment-000001"])
@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("how", [Killed, OSError])
async def test_an_older_generation_is_not_served_when_only_some_could_be_put_into_the_quarantine(
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    damaged: str,
    kept: int,
    how: type[BaseException],
) -> None:
    old = await written(node, b"old")
    assert old.files is not None
    directory, copy = old.files.directory, tmp_path / "copy"
    shutil.copytree(directory, copy)
    del old
    await overwrite(node, b"new").end()
    await node.catalogue.disk.disposal.settled()
    (manifest,) = manifests(tmp_path / "datasets")
    copy.rename(directory)  # as after a crash before it was deleted
    os.truncate(manifest.parent / damaged, 1)
    rename, moves = os.rename, 0

    def fails_once(before: Any, after: Any) -> None:
        nonlocal moves
        moves += Path(before).parent.name == "datasets"
        if moves == kept:
            raise how(errno.EIO, os.strerror(errno.EIO))
        rename(before, after)

    with monkeypatch.context() as patch, suppress(Killed, OSError):
        patch.setattr(os, "rename", fails_once)
        restarted(tmp_path).close()
    assert moves == kept
    with closing(restarted(tmp_path)) as catalogue, pytest.raises(DataQuarantined):
        catalogue.find("d")
    assert len(list((tmp_path / "quarantine").iterdir())) == 2


async def test_a_damaged_generation_that_cannot_be_put_into_the_quarantine_ends_the_start(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await written(node, b"old")
    assert old.files is not None
    directory, copy = old.files.directory, tmp_path / "copy"
    shutil.copytree(directory, copy)
    del old
    await overwrite(node, b"new").end()
    await node.catalogue.disk.disposal.settled()
    copy.rename(directory)  # as after a crash before it was moved
    (directory / DAMAGE_NAME).write_bytes(b"torn")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing(errno.EIO))
        with pytest.raises(OSError, match="could not be put aside"):
            restarted(tmp_path)
    with closing(restarted(tmp_path)) as catalogue:
        await catalogue.remove("d")
    assert restarted(tmp_path).get("d") is None


async def test_a_manifest_that_the_disk_neither_finishes_nor_removes_is_removed_later(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(node)
    sink = StreamSink(node.durability, PutCommand("d"), SCHEMA)
    sink.publish(0, frame(node, b"x"))
    fsync = os.fsync

    def fsync_before_the_rename(fd: int) -> None:
        if manifests(tmp_path):
            failing(errno.EIO)()
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync_before_the_rename)
        patch.setattr(os, "unlink", failing(errno.EIO))
        with pytest.raises(Unavailable, match="could not be put on disk") as refused:
            await sink.end()
        sink.abort(refused.value)
        await node.catalogue.disk.disposal.settled()
    assert len(manifests(tmp_path)) == 1
    assert restarted(tmp_path).find("d").rows == 1, "what a manifest names is there"
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing(errno.EIO))
        with pytest.raises(Unavailable, match="not dropped yet"):
            await node.catalogue.remove("d")
    await node.catalogue.remove("d")
    assert manifests(tmp_path) == []
    assert restarted(tmp_path).get("d") is None


async def test_a_commit_that_is_tried_again_has_the_dictionaries_of_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with durable_node(tmp_path, patience_seconds=60) as node:
        dataset = create(node, partitions=2)
        for index, data in enumerate((b"one dictionary", b"another one")):
            message = DictionaryMessage(Payload(data, node.budget.frames.reserve(len(data))), 0, crc32c(data))
            state = NO_DICTIONARIES.replaced(0, message, delta=False)
            dataset.begin_stream(index).publish(frame(node, b"batch", state))
        await node.durability.persist(dataset, [0], lambda: None)
        rename, failed = os.rename, False

        def fails_once(before: Any, after: Any) -> None:
            nonlocal failed
            if not failed and Path(after).name == MANIFEST_NAME:
                failed = True
                failing(errno.EIO)()
            rename(before, after)

        monkeypatch.setattr(os, "rename", fails_once)
        await node.durability.persist(dataset, [1], lambda: None)
        assert failed
        found = [each.dictionaries for each in _frames(restarted(tmp_path).find("d"))]
        assert [state.by_id[0][0].read_back() for state in found] == [b"one dictionary", b"another one"]
