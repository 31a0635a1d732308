"""Which stalled readers are ended: those that hold what others wait for, their own or shared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flight_server.memory import Pace
from flight_server.protocol.errors import ReaderTooSlow
from flight_server.tiering.readback import Reader
from tests.support.nodes import running_node

STALL_SECONDS = 0.02


async def takes_nothing(_: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("shares", [True, False])
async def test_a_proven_reader_is_ended_if_it_shares_a_message_that_has_the_room_of_unproven_ones(
    tmp_path: Path, shares: bool
) -> None:
    async with running_node(tmp_path, memory_limit=8 << 20, stall_seconds=STALL_SECONDS) as node:
        unproven = node.budget.unproven
        message = unproven.reserve(unproven.limit_bytes or 0)
        write = asyncio.ensure_future(
            node.delivery.deliver(
                takes_nothing,
                b"",
                Reader("d", 0, "proven", Pace(proven=True)),
                room=node.budget.sends.reserve(1000),
                shared=message if shares else None,
            )
        )
        waits = unproven.request(1000, lambda _: None)
        for _ in range(5):
            await asyncio.sleep(2 * STALL_SECONDS)
            node.eviction.look()
        assert write.done() == shares
        if shares:
            with pytest.raises(ReaderTooSlow):
                await write
        waits.cancel()
        write.cancel()
        await asyncio.wait([write])
