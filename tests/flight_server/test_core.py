"""Readers that take nothing are ended when somebody else gets nothing because of them, and only then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flight_server.core import Core
from flight_server.errors import ReaderTooSlow
from flight_server.memory import Reservation
from flight_server.readback import Reader
from tests.support.cores import running_core

READER = Reader("d", 0, "test")
STALL_SECONDS = 0.05


async def takes_nothing(_: object) -> None:
    await asyncio.Event().wait()


async def stalled(core: Core) -> asyncio.Task[None]:
    """A write that has taken longer than the stall limit."""
    write = asyncio.ensure_future(core.deliver(takes_nothing, b"", READER))
    await asyncio.sleep(2 * STALL_SECONDS)
    return write


async def end(write: asyncio.Task[None]) -> None:
    write.cancel()
    await asyncio.wait([write])


async def test_a_stalled_reader_that_nobody_waits_behind_is_left_alone(tmp_path: Path) -> None:
    async with running_core(tmp_path, stall_seconds=STALL_SECONDS) as core:
        write = await stalled(core)
        for _ in range(3):
            core.end_stalled_readers()
            await asyncio.sleep(2 * STALL_SECONDS)
        assert not write.done()
        await end(write)


async def test_a_stalled_reader_is_left_alone_while_the_others_get_their_turns(tmp_path: Path) -> None:
    async with running_core(tmp_path, stall_seconds=STALL_SECONDS) as core:
        write = await stalled(core)
        held = core.budget.sends.reserve(core.budget.sends.limit_bytes or 0)
        granted: list[Reservation] = []
        for _ in range(4):
            # Another one is next each time that somebody looks.
            request = core.budget.sends.request(1, granted.append)
            core.end_stalled_readers()
            await asyncio.sleep(2 * STALL_SECONDS)
            request.cancel()
        assert not write.done()
        held.free()
        await end(write)


async def test_a_stalled_reader_is_ended_when_the_same_one_stays_next(tmp_path: Path) -> None:
    async with running_core(tmp_path, stall_seconds=STALL_SECONDS) as core:
        write = await stalled(core)
        held = core.budget.sends.reserve(core.budget.sends.limit_bytes or 0)
        granted: list[Reservation] = []
        request = core.budget.sends.request(1, granted.append)
        core.end_stalled_readers()
        await asyncio.sleep(2 * STALL_SECONDS)
        core.end_stalled_readers()
        with pytest.raises(ReaderTooSlow, match="dataset 'd' partition 0"):
            await write
        request.cancel()
        held.free()
