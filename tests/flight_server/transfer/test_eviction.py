"""Which stalled readers are ended: those that hold what others wait for, their own or shared."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flight_server.memory import Pace
from flight_server.memory.accounts import PROOF_BYTES
from flight_server.protocol.errors import ReaderTooSlow
from flight_server.tiering.readback import Reader
from tests.flight_server.transfer.test_delivery import end, takes_nothing
from tests.support.nodes import running_node

STALL_SECONDS = 0.02
MIB = 1 << 20


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
        await end(write)


async def test_a_reader_whose_write_lasts_has_to_prove_itself_again_and_loses_what_was_read_ahead(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        pace, stalls = Pace(), list[bool]()
        pace.took(PROOF_BYTES)
        pace.on_stall = lambda: stalls.append(True)
        write = asyncio.ensure_future(node.delivery.deliver(takes_nothing, b"", Reader("d", 0, "slow", pace)))
        await asyncio.sleep(0)
        ((timeout, listed),) = node.delivery.writes.items()
        for seconds, stalled in ((0.9, False), (1.1, True)):
            node.delivery.writes[timeout] = replace(listed, since=listed.since - seconds)
            node.eviction.look()
            assert (bool(stalls), pace.allowed_bytes(1) == 0) == (stalled, stalled)
        pace.took(PROOF_BYTES)
        assert not pace.proven
        await end(write)


@pytest.mark.parametrize(
    ("message_bytes", "begun", "seconds", "ended"),
    [
        (MIB, True, 7, False),  # at 150 KB/s, say
        (MIB, True, 11, True),
        (MIB, False, 7, True),
        (MIB // 16, True, 7, True),
        (8 * MIB, True, 9, False),
        (8 * MIB, True, 11, True),  # twice what one that takes nothing has
    ],
)
async def test_a_reader_has_stalled_when_a_steady_one_would_have_taken_the_message(
    tmp_path: Path, message_bytes: int, begun: bool, seconds: int, ended: bool
) -> None:
    async with running_node(tmp_path, memory_limit=64 * MIB, stall_seconds=30) as node:
        pool, pace = node.budget.unproven, Pace()
        if begun:
            pace.took(1)
        room = pool.reserve(message_bytes)
        write = asyncio.ensure_future(
            node.delivery.deliver(takes_nothing, b"", Reader("d", 0, "slow", pace), room=room)
        )
        await asyncio.sleep(0)
        ((timeout, listed),) = node.delivery.writes.items()
        node.delivery.writes[timeout] = replace(listed, since=listed.since - seconds)
        waits = pool.request(pool.limit_bytes or 0, lambda _: None)
        node.eviction._progress[pool] = pool.granted, listed.since - seconds
        node.eviction.look()
        assert (timeout.when() is not None) == ended
        waits.cancel()
        await end(write)
