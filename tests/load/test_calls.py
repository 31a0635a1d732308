"""More calls at once than gRPC's own limit of calls that wait to be accepted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from flight_server import config
from flight_server.server import Server
from tests.load.crowd import put

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
CALLS, RESETS = 5000, 3000
FRAMES = 3


@pytest.mark.load(seconds=8)
@pytest.mark.long
async def test_of_thousands_of_calls_at_once_none_is_cancelled_because_of_the_others() -> None:
    chosen = config.load({"port": 0, "http_port": -1, "memory_limit": 64 * MIB})
    async with Server(chosen) as server:
        await asyncio.to_thread(put, server.location, FRAMES, 1 << 10)
        command = [sys.executable, "-m", "tests.load.calls", server.location, "d", str(CALLS), str(RESETS)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as clients:  # noqa: ASYNC220
            try:
                assert clients.stdout is not None
                connected = await asyncio.to_thread(clients.stdout.readline)
                assert connected == "connected\n"
                # The loop stands still while gRPC's own threads take the calls in: this is the case under test.
                assert clients.stdout.readline() == "sent\n"
                answer = await asyncio.to_thread(clients.stdout.readline)
            finally:
                clients.kill()
    assert json.loads(answer) == {f"OK after {1 + FRAMES}": CALLS}
