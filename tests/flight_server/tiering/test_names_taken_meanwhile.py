"""What takes a name while a durable seal writes its manifest, and what the next start finds then."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from flight_server.datasets.dataset import Dataset
from flight_server.kinds.seals import seal
from flight_server.kinds.stream import StreamSink
from flight_server.node import Node
from flight_server.protocol import (
    CreateRequest,
    Kind,
    PutCommand,
    Retention,
    SealRequest,
    WriteMode,
)
from flight_server.protocol.errors import AlreadyExists, Conflict, NotFound, Unavailable
from tests.support.sealing import SCHEMA, Held, bytes_of, durable_node, frame, manifests, restarted, staged


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with durable_node(tmp_path) as node:
        yield node


async def held_seal(
    node: Node, dataset: Dataset, request: SealRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Held, asyncio.Task[Any]]:
    """A seal whose manifest is just being written."""
    held = Held(dataset.files, "commit", monkeypatch)
    sealing = asyncio.ensure_future(seal(node.durability, dataset, request))
    await held.reached()
    return held, sealing


async def put(node: Node, message: bytes) -> Dataset:
    """What a put makes that is not durable, acknowledged."""
    sink = StreamSink(node.durability, PutCommand("d"), SCHEMA)
    sink.publish(0, frame(node, message))
    await sink.end()
    return sink.dataset


def failing(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def refusing_syncs_of_manifests(tmp_path: Path) -> Callable[[int], None]:
    """An fsync that fails once there is a manifest."""
    fsync = os.fsync

    def refuse(fd: int) -> None:
        if manifests(tmp_path):
            failing()
        fsync(fd)

    return refuse


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
    assert manifests(tmp_path) == []
    node.catalogue.drop("d")
    assert (await seal(node.durability, dataset, request)).generation == dataset.generation
    assert bytes_of(restarted(tmp_path).find("d"), 0) == [b"w"]


async def test_an_overwrite_that_was_cancelled_while_its_manifest_was_written_has_the_name(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seal(node.durability, *staged(node, WriteMode.OVERWRITE, "old"))
    dataset, request = staged(node, WriteMode.OVERWRITE, "new")
    held, sealing = await held_seal(node, dataset, request, monkeypatch)
    sealing.cancel()
    await asyncio.sleep(0.01)
    held.go_on()
    with pytest.raises(asyncio.CancelledError):
        await sealing
    assert node.catalogue.find("d") is dataset
    assert (await seal(node.durability, dataset, request)).generation == dataset.generation
    # Two servers must not delete the files of the old one at the same time.
    await node.catalogue.disk.disposal.settled()
    assert bytes_of(restarted(tmp_path).find("d"), 0) == [b"new"]


async def test_a_drop_of_a_staged_write_waits_for_its_manifest_and_is_refused(
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
    assert restarted(tmp_path).find("d").generation == dataset.generation


async def test_a_manifest_that_the_disk_did_not_take_back_is_withdrawn_later_or_written_again(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, request = staged(node, WriteMode.NEW)
    disposal = node.catalogue.disk.disposal
    for again in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", failing)
            patch.setattr(os, "fsync", refusing_syncs_of_manifests(tmp_path))
            with pytest.raises(Unavailable):
                await seal(node.durability, dataset, request)
            await disposal.settled()
        assert len(manifests(tmp_path)) == 1
        if again:
            await seal(node.durability, dataset, request)
        disposal.forget_again()
        await disposal.settled()
        assert len(manifests(tmp_path)) == again
    assert bytes_of(restarted(tmp_path).find("d"), 0) == [b"w"]


@pytest.mark.parametrize("ending", ["drop", "lease"])
async def test_no_generation_is_forgotten_before_an_older_one_that_may_come_back(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    await seal(node.durability, *staged(node, WriteMode.OVERWRITE, "old"))
    (old,) = manifests(tmp_path)
    unlink, disposal = os.unlink, node.catalogue.disk.disposal

    def refuse_old(path: Any, **options: Any) -> None:
        if Path(path) == old:
            failing()
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse_old)
        dataset, request = staged(node, WriteMode.OVERWRITE, "new")
        await seal(node.durability, dataset, request)
        await disposal.settled()
        if ending == "drop":
            with pytest.raises(Unavailable, match="not dropped yet"):
                await node.catalogue.remove("d")
        else:
            dataset.lease_seconds = 0
            assert not any(node.catalogue.expire())
        for _ in range(3):  # also when the newer one is tried again first
            disposal.forget_again()
            await disposal.settled()
            assert not any(node.catalogue.expire())
        assert node.catalogue.find("d") is dataset
        copy = tmp_path / "as after a crash"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns(copy.name))
        with closing(restarted(copy)) as after:
            assert bytes_of(after.find("d"), 0) == [b"new"], "the old one had been overwritten"
        shutil.rmtree(copy)
    disposal.forget_again()
    await disposal.settled()
    assert manifests(tmp_path) == []
    assert [each for each in node.catalogue.expire() if each] == [dataset]


async def test_generations_between_one_that_the_disk_keeps_and_the_last_are_forgotten(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seal(node.durability, *staged(node, WriteMode.OVERWRITE, "old"))
    (old,) = manifests(tmp_path)
    unlink, disposal = os.unlink, node.catalogue.disk.disposal

    def refuse_old(path: Any, **options: Any) -> None:
        if Path(path) == old:
            failing()
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse_old)
        for number in range(6):
            await seal(node.durability, *staged(node, WriteMode.OVERWRITE, f"new {number}"))
        await disposal.settled()
        assert len(manifests(tmp_path)) == 3  # the old one, the last overwritten one, and the present one
        copy = tmp_path / "as after a crash"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns(copy.name))
        with closing(restarted(copy)) as after:
            assert bytes_of(after.find("d"), 0) == [b"new 5"]
        shutil.rmtree(copy)
        with pytest.raises(Unavailable, match="not dropped yet"):
            await node.catalogue.remove("d")
        assert len(manifests(tmp_path)) == 2
    disposal.forget_again()
    await disposal.settled()
    assert manifests(tmp_path) == []


async def test_a_staged_overwrite_keeps_what_the_request_leaves_open(node: Node) -> None:
    made = CreateRequest("d", Kind.SHUFFLE, durable=True, lease_seconds=77.0, retention=Retention(readers=2))
    node.catalogue.create(made, SCHEMA)
    dataset, request = staged(node, WriteMode.OVERWRITE)
    await seal(node.durability, dataset, request)
    assert dataset.durable
    assert (dataset.lease_seconds, dataset.retention) == (77.0, Retention(readers=2))
