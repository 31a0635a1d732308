"""Durable staged writes after a crash at every step of what they write: the process killed, or the machine without
power, so that unsynced writes are lost.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from flight_server.datasets import Dataset
from flight_server.kinds.seals import seal
from flight_server.node import Node
from flight_server.protocol import Commit, CreateRequest, Kind, SealRequest, Transaction, WriteMode
from tests.support.crash_points import CrashPoints, Image
from tests.support.sealing import SCHEMA, bytes_of, durable_node, frame, hold_commit, restarted

# What the name may lead to after each acknowledged step; the next one may be there, too.
STEPS: list[bytes | None] = [None, b"new", b"overwritten", b"given up or not", b"last", None]


def staged(node: Node, mode: WriteMode, message: bytes) -> tuple[Dataset, SealRequest]:
    request = CreateRequest(
        "d", Kind.SHUFFLE, partitions=5, durable=True, mode=mode, write=message.decode().replace(" ", "-")
    )
    dataset = node.catalogue.stage(request, SCHEMA)[0]
    dataset.partition(4)  # a reader has asked for it
    attempt = dataset.begin_attempt(0, "a")
    attempt.publish(0, frame(node, message))
    dataset.commit(attempt, Commit(1, 1))
    transaction = Transaction("job", STEPS.index(message)) if message in STEPS else None
    return dataset, SealRequest("d", dataset.generation, {0: "a"}, partitions=2, transaction=transaction)


async def work(root: Path, points: CrashPoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new dataset, overwrites, one of them dropped, one given up while it is committed, and a drop."""
    async with durable_node(root) as node:
        await seal(node.durability, *staged(node, WriteMode.NEW, b"new"))
        points.acknowledged = 1
        dropped, _ = staged(node, WriteMode.OVERWRITE, b"dropped")
        await node.catalogue.remove("d", dropped.generation, staged=True)
        await seal(node.durability, *staged(node, WriteMode.OVERWRITE, b"overwritten"))
        points.acknowledged = 2
        again, request = staged(node, WriteMode.OVERWRITE, b"given up or not")
        held = hold_commit(node, monkeypatch)
        sealing = asyncio.ensure_future(seal(node.durability, again, request))
        await held.reached()
        sealing.cancel()
        held.go_on()
        await asyncio.wait([sealing])
        assert sealing.cancelled()
        assert node.catalogue.find("d") is again
        points.acknowledged = 3
        await seal(node.durability, again, request)
        await seal(node.durability, *staged(node, WriteMode.OVERWRITE, b"last"))
        points.acknowledged = 4
        await node.catalogue.remove("d")
        points.acknowledged = 5


async def check(image: Image) -> None:
    expected = STEPS[image.acknowledged : image.acknowledged + 2]
    with closing(restarted(image.path)) as catalogue:
        assert catalogue.disk.quarantine.entries == [], image.step
        found = catalogue.get("d")
        read = None if found is None else b"".join(await bytes_of(catalogue, found, 0))
        assert read in expected, image.step
        if found is not None:
            assert (found.partition_count, found.sealed) == (2, True), image.step
            assert found.transactions.last("job") == STEPS.index(read), image.step


async def test_a_crash_at_any_step_of_staged_writes_leaves_the_last_acknowledged_one_or_the_next(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = base / "root"
    restarted(root).close()  # makes the folder and the records
    with CrashPoints(root, base) as points:
        await work(root, points, monkeypatch)
    assert len(points.images) > 45
    assert {image.acknowledged for image in points.images} >= {0, 1, 2, 3, 4}
    for image in points.images:
        await check(image)
        shutil.rmtree(image.path)
