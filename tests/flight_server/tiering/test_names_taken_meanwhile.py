"""What takes a name while a durable seal is committed, and what the next start finds then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
from tests.support.sealing import (
    SCHEMA,
    Held,
    bytes_after_restart,
    committed,
    durable_node,
    frame,
    hold_commit,
    refused_commits,
    staged,
)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with durable_node(tmp_path) as node:
        yield node


async def held_seal(
    node: Node, dataset: Dataset, request: SealRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Held, asyncio.Task[Any]]:
    """A seal that is just being committed."""
    held = hold_commit(node, monkeypatch)
    sealing = asyncio.ensure_future(seal(node.durability, dataset, request))
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
    assert (await seal(node.durability, dataset, request)).generation == dataset.generation
    assert await bytes_after_restart(tmp_path) == [b"w"]


async def test_an_overwrite_that_was_cancelled_while_it_was_committed_has_the_name(
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
    await node.catalogue.disk.disposal.wait_idle()
    assert await bytes_after_restart(tmp_path) == [b"new"]


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


async def test_a_seal_that_the_disk_refused_left_what_had_the_name_and_may_be_tried_again(
    node: Node, tmp_path: Path
) -> None:
    await seal(node.durability, *staged(node, WriteMode.OVERWRITE, "old"))
    old = node.catalogue.find("d")
    dataset, request = staged(node, WriteMode.OVERWRITE, "new")
    with refused_commits(node), pytest.raises(Unavailable):
        await seal(node.durability, dataset, request)
    assert node.catalogue.find("d") is old
    assert await bytes_after_restart(tmp_path) == [b"old"]
    await seal(node.durability, dataset, request)
    assert await bytes_after_restart(tmp_path) == [b"new"]


async def test_a_staged_overwrite_keeps_what_the_request_leaves_open(node: Node) -> None:
    made = CreateRequest("d", Kind.SHUFFLE, durable=True, lease_seconds=77.0, retention=Retention(readers=2))
    node.catalogue.create(made, SCHEMA)
    dataset, request = staged(node, WriteMode.OVERWRITE)
    await seal(node.durability, dataset, request)
    assert dataset.durable
    assert (dataset.lease_seconds, dataset.retention) == (77.0, Retention(readers=2))
