"""A principal at a quota is refused more, with nothing left behind, and no other principal notices."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.access import Principal, Usages
from flight_server.access.principals import Quotas
from flight_server.access.quotas import Usage
from flight_server.datasets.attachment import Attachment
from flight_server.node import Node
from flight_server.protocol import (
    CreateRequest,
    FlightShuffleError,
    Kind,
    QuotaExceeded,
    QuotaInUse,
    WriteMode,
)
from tests.flight_server.transfer.test_receiving import receive
from tests.support.nodes import read_table, running_node
from tests.support.raw_flight import command, path, put_messages

KIBIBYTE = 1024
BATCH = pa.record_batch({"n": np.arange(8 * KIBIBYTE)})  # 64 KiB


class Calls:
    """The calls of one principal."""

    def __init__(self, usages: Usages, name: str, **quotas: int) -> None:
        self.principal = Principal(name, quotas=Quotas(**quotas))
        self._usages = usages

    @property
    def usage(self) -> Usage:
        return self._usages.of(self.principal)

    def run(self) -> AbstractContextManager[None]:
        return self._usages.calls_of(self.principal)


async def put(node: Node, calls: Calls, name: str, batches: int = 1, **more: Any) -> None:
    with calls.run():
        await receive(
            node, put_messages(command({"dataset": name, **more}) if more else path(name), [BATCH] * batches)
        )


def create(node: Node, calls: Calls, name: str) -> None:
    with calls.run():
        node.catalogue.create(CreateRequest(name, Kind.SHUFFLE), None)


async def test_a_put_that_crosses_the_quota_fails_whole_and_others_go_on(node: Node) -> None:
    usages = Usages(node.budget)
    etl, others = Calls(usages, "etl", bytes=300 * KIBIBYTE), Calls(usages, "others")
    await put(node, etl, "first", 3)
    held_bytes = etl.usage.used_bytes
    assert 3 * BATCH.nbytes <= held_bytes < 4 * BATCH.nbytes
    with pytest.raises(QuotaExceeded, match="dataset 'second' gets no more: principal 'etl' has") as refused:
        await put(node, etl, "second", 3)
    detail = refused.value.detail
    assert (detail["principal"], detail["quota"], detail["limit"]) == ("etl", "bytes", 300 * KIBIBYTE)
    assert not refused.value.retryable
    await put(node, others, "third", 20)
    assert (await read_table(node, node.catalogue.find("third"))).num_rows == 20 * BATCH.num_rows
    # What failed has left; what was there stays, and counts until it is dropped.
    node.catalogue.drop("second")
    assert etl.usage.used_bytes == held_bytes
    with pytest.raises(QuotaExceeded):
        await put(node, etl, "second", 2)
    node.catalogue.drop("second")
    node.catalogue.drop("first")
    assert etl.usage.used_bytes == 0
    await put(node, etl, "second", 3)
    etl.principal = Principal("etl", quotas=Quotas(bytes=1))  # the token file has changed
    assert etl.usage.used_bytes == held_bytes
    with pytest.raises(QuotaExceeded):
        await put(node, etl, "fourth")


async def test_staged_writes_of_one_name_count_each(node: Node) -> None:
    etl = Calls(Usages(node.budget), "etl", datasets=2)
    create(node, etl, "a")

    def stage(write: str) -> None:
        request = CreateRequest("a", Kind.SHUFFLE, mode=WriteMode.OVERWRITE, write=write)
        with etl.run():
            node.catalogue.stage(request, None)

    for write in ("1", "2"):
        stage(write)
    with pytest.raises(QuotaExceeded):
        stage("3")


async def test_puts_at_the_same_time_do_not_pass_the_quota_together(node: Node) -> None:
    etl = Calls(Usages(node.budget), "etl", bytes=500 * KIBIBYTE)
    most = 0

    async def one(number: int) -> bool:
        nonlocal most
        try:
            await put(node, etl, f"d{number}", 2)
        except QuotaExceeded:
            return False
        finally:
            most = max(most, etl.usage.used_bytes)
        return True

    done = await asyncio.gather(*map(one, range(8)))
    assert 1 <= sum(done) < 8
    assert most <= 500 * KIBIBYTE


async def test_bytes_on_disk_count(tmp_path: Path) -> None:
    async with running_node(tmp_path, memory_limit=8 << 20) as node:
        etl = Calls(Usages(node.budget), "etl", bytes=12 << 20)
        await put(node, etl, "d", 150)
        assert etl.usage.disk.used_bytes > 0
        assert etl.usage.used_bytes >= 150 * BATCH.nbytes
        with pytest.raises(QuotaExceeded):
            await put(node, etl, "e", 80)
        node.catalogue.drop("e")
        node.catalogue.drop("d")
        async with asyncio.timeout(10):
            while etl.usage.used_bytes > 0:  # noqa: ASYNC110 - a write that has begun ends, and tells nothing
                await asyncio.sleep(0.001)


async def test_datasets_count_until_they_are_dropped_and_a_replaced_one_counts_once(node: Node) -> None:
    usages = Usages(node.budget)
    etl, others = Calls(usages, "etl", datasets=2), Calls(usages, "others", datasets=1)
    create(node, etl, "a")
    await put(node, etl, "b")
    for refused in ("c", "d"):
        with pytest.raises(QuotaExceeded, match=r"principal 'etl' has 2 of 2 datasets, its quota; drop"):
            create(node, etl, refused)
    with pytest.raises(FlightShuffleError):
        await put(node, etl, "c")
    assert not node.catalogue.has("c")
    create(node, others, "c")
    await put(node, etl, "b", mode="overwrite")
    assert etl.usage.statistics()["datasets"] == {"used": 2, "limit": 2}
    node.catalogue.drop("a")
    create(node, etl, "d")
    # Of a name that another principal takes, the other one has the dataset.
    await put(node, etl, "b", mode="overwrite")
    node.catalogue.drop("c")
    await put(node, others, "b", mode="overwrite")
    assert [
        etl.usage.statistics()["datasets"]["used"],
        others.usage.statistics()["datasets"]["used"],
    ] == [1, 1]


async def test_running_streams_count_and_the_error_says_to_wait(node: Node) -> None:
    usages = Usages(node.budget)
    etl, others = Calls(usages, "etl", streams=1), Calls(usages, "others")
    with etl.usage.stream():
        with pytest.raises(QuotaInUse, match="principal 'etl' has 1 running puts and gets") as refused:
            await put(node, etl, "a")
        assert refused.value.retryable
        await put(node, others, "b")
    await put(node, etl, "a")
    assert etl.usage.statistics()["streams"] == {"used": 0, "limit": 1}


async def test_what_a_kind_keeps_beside_frames_counts_and_is_looked_for_before_the_quota_is_passed(
    node: Node,
) -> None:
    etl = Calls(Usages(node.budget), "etl", bytes=1000)
    create(node, etl, "d")
    dataset = node.catalogue.find("d")

    class Kept(Attachment):  # what a changelog's attachment says
        size_bytes = 0

        def stored(self) -> tuple[int, int, int]:
            return 1, self.size_bytes, self.size_bytes

        def close(self, why: str) -> None: ...

    dataset.attached = kept = Kept()
    for _ in range(2):
        with etl.usage.claim(400, "d"):
            pass
        kept.size_bytes += 200
    with pytest.raises(QuotaExceeded, match="has 800 of 1000 bytes"), etl.usage.claim(400, "d"):
        pass
    assert etl.usage.used_bytes == 800
    node.catalogue.drop("d")
    assert etl.usage.used_bytes == 0
