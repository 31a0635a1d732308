"""A server in this process: what its start leaves behind when it fails, and what keeps its duties going."""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from flight_server.config import Settings
from flight_server.frames import SchemaMessage
from flight_server.lanes.http.listening import AddressRefused
from flight_server.protocol import CreateRequest, Kind
from flight_server.server import Server
from flight_server.storage.data_dir import DataDir


def settings(data_dir: Path, **changes: object) -> Settings:
    given = {"port": 0, "http_port": 0, "memory_limit": "64MiB", "data_dir": data_dir, **changes}
    return Settings(**given)  # type: ignore[arg-type]  # what any option may be


@pytest.mark.parametrize("option", ["port", "http_port"])
async def test_a_start_that_fails_leaves_no_lock_no_thread_and_no_port(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = Server(settings(tmp_path, **{option: taken.getsockname()[1]}))
        with pytest.raises(AddressRefused):
            await server.start()
    DataDir.claim(tmp_path).close()
    await server.stop()


async def test_a_start_that_is_cancelled_lets_another_server_have_the_directory(tmp_path: Path) -> None:
    server = Server(settings(tmp_path))
    starting = asyncio.ensure_future(server.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    DataDir.claim(tmp_path).close()


async def test_the_default_disk_limit_counts_what_changelogs_have_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))
    rows = pa.record_batch([pa.array([7] * 100)], names=["n"])
    async with Server(settings(tmp_path)) as server:
        schema = base64.b64encode(rows.schema.serialize().to_pybytes()).decode()
        request = CreateRequest("d", Kind.CHANGELOG, schema=schema)
        store = server.node.changelogs
        dataset, _ = await store.create(request, SchemaMessage.of(rows.schema))
        write = store.write(dataset)
        await write.add(rows, server.catalogue.budget.frames.reserve(rows.nbytes))
        assert await write.commit() == 1
    async with Server(settings(tmp_path)) as server:
        disk = server.catalogue.budget.disk
        assert disk.used_bytes > 0
        assert disk.limit_bytes == disk.used_bytes + 8000


async def test_a_drain_does_not_wait_for_a_reader_over_http_that_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the drain's own look it would wait so long for a client that may read on.
    monkeypatch.setattr("flight_server.transfer.delivery.READER_STALL_SECONDS", 600.0)
    async with Server(settings(tmp_path, stall_seconds=600)) as server:
        server.catalogue.create(CreateRequest("awaited"), None)
        _, left = await asyncio.open_connection("127.0.0.1", server.facts()["http_port"])
        left.write(b"GET /v1/datasets/awaited HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not len(server.node.waits):  # noqa: ASYNC110  # which have no event
            await asyncio.sleep(0.01)
        left.close()
        async with asyncio.timeout(60):
            await server.stop(600)
