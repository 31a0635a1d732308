"""A soak: random traffic under a small limit, and after it everything is back where it began.

One minute by default; ``--soak-seconds 600`` for the long form.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from tests.load.soak import Soak
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

MIB = 1 << 20
MEMORY_LIMIT_BYTES = 32 * MIB
# The process itself, the libraries' own buffers and holes in the heap; the pool's limit comes on top.
CONSTANT_BYTES = 224 * MIB
SETTLING_SECONDS = 30.0
# Pools start a thread when all of theirs are busy, and keep it: four for files, one to dispose of them, and
# asyncio's own. How many there are after the warm-up is chance.
POOL_THREADS = 4 + 1 + min(32, (os.cpu_count() or 1) + 4)


def statistics(server: ServerProcess) -> dict[str, Any]:
    with flight.connect(server.location) as client:
        body = next(iter(client.do_action(("statistics", b"")))).body.to_pybytes()
    loaded: dict[str, Any] = json.loads(body)
    return loaded


def open_files(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def threads(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/task").iterdir()))


def drop_everything(server: ServerProcess) -> None:
    with flight.connect(server.location) as client:
        for name in statistics(server)["datasets"]:
            with suppress(KeyError):  # its lease has ended since
                list(client.do_action(("drop", json.dumps({"dataset": name}).encode())))


@pytest.mark.load(seconds=65)
@pytest.mark.timeout(900)
async def test_random_traffic_leaves_nothing_behind(
    request: pytest.FixtureRequest, flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = flight_server_process(
        memory_limit=f"{MEMORY_LIMIT_BYTES}",
        disk_limit="256MiB",
        data_dir=tmp_path,
        keepalive_seconds=2,
        budget_deadline_seconds=5,
        stall_seconds=5,
    )
    warm_up = Soak(server, seconds=3, seed=1)
    await warm_up.run()
    await asyncio.to_thread(drop_everything, server)
    await _settled(server)
    files_before, threads_before = open_files(server), threads(server)

    soak = Soak(server, seconds=float(request.config.getoption("--soak-seconds")), seed=2)
    await soak.run()

    assert soak.wrong == []
    assert soak.done["get"] > 0
    assert soak.done["put"] > 0
    assert soak.done["kill"] > 0
    assert statistics(server)["memory"]["peak_bytes"] <= MEMORY_LIMIT_BYTES * 1.25
    await asyncio.to_thread(drop_everything, server)
    await _settled(server)
    after = statistics(server)
    assert after["memory"]["used_bytes"] == 0
    assert after["disk"]["used_bytes"] == 0
    assert after["waits"] == 0
    assert [path for path in (tmp_path / "datasets").rglob("*") if path.is_file()] == []
    eventually(lambda: open_files(server) <= files_before + 4, expected=True)
    assert threads(server) <= threads_before + POOL_THREADS
    assert server.rss_bytes() <= MEMORY_LIMIT_BYTES + CONSTANT_BYTES
    assert server.events("internal_error") == []


async def _settled(server: ServerProcess) -> None:
    """Wait until killed clients were noticed and the last file is gone."""
    now: dict[str, Any] = {}
    try:
        async with asyncio.timeout(SETTLING_SECONDS):
            while True:
                now = await asyncio.to_thread(statistics, server)
                if not (now["memory"]["used_bytes"] or now["disk"]["used_bytes"] or now["waits"]):
                    return
                await asyncio.to_thread(drop_everything, server)
                await asyncio.sleep(0.2)
    except TimeoutError:
        with flight.connect(server.location) as client:
            why = next(iter(client.do_action(("why", b"")))).body.to_pybytes()
        pytest.fail(f"held for {SETTLING_SECONDS} s after the last client has gone: {now}; waits: {why!r}")
