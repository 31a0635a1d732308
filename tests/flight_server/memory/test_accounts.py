"""The accounts, and how streams wait for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flight_server.concurrency.waits import Waits
from flight_server.memory.accounts import MAX_MESSAGE_BYTES, Budget, reserve
from flight_server.memory.pool import MemoryPool
from flight_server.protocol.errors import OutOfBudget

LIMIT_BYTES = 10


async def queued(pool: MemoryPool, waiting: int) -> None:
    while pool.waiting < waiting:  # noqa: ASYNC110  # the pool has no event, and needs none but here
        await asyncio.sleep(0)


def test_the_accounts_add_up_to_the_limit_and_the_largest_message_fits_each() -> None:
    budget = Budget(64 << 20, None)
    limits = [account.limit_bytes for account in (budget.frames, budget.sends, budget.arrivals)]
    assert sum(limit for limit in limits if limit is not None) == 64 << 20
    # Read back from disk, and copied by gRPC.
    assert budget.sends.limit_bytes == 2 * budget.max_message_bytes
    assert budget.arrivals.limit_bytes == budget.max_message_bytes
    # What is being sent cannot be spilled, and yet a message has room beside it.
    assert budget.frames.limit_bytes is not None
    assert budget.sends.limit_bytes + budget.max_message_bytes <= budget.frames.limit_bytes
    assert Budget(1 << 40, None).max_message_bytes == MAX_MESSAGE_BYTES


async def test_a_wait_is_listed_with_its_owner_and_ends_with_the_bytes() -> None:
    pool, waits = MemoryPool(LIMIT_BYTES), Waits()
    held = pool.reserve(10)
    told: list[int] = []
    task = asyncio.ensure_future(
        reserve(
            pool, 4, waits, dataset="d", partition=3, peer="p", queued=lambda: told.append(pool.wanted_bytes)
        )
    )
    await queued(pool, 1)
    assert told == [4]
    (wait,) = waits.listed()
    assert (wait["waiting_for"], wait["dataset"], wait["partition"], wait["peer"]) == ("budget", "d", 3, "p")
    # Bytes may come back in any thread.
    thread = threading.Thread(target=held.free)
    thread.start()
    reservation = await task
    thread.join()
    assert (reservation.size_bytes, pool.used_bytes, len(waits)) == (4, 4, 0)


async def test_the_deadline_is_an_error_that_says_what_was_wanted() -> None:
    pool, waits = MemoryPool(LIMIT_BYTES, "frames"), Waits()
    held = pool.reserve(10)
    with pytest.raises(OutOfBudget, match="4 bytes of the account 'frames'") as caught:
        await reserve(pool, 4, waits, dataset="d", deadline_seconds=0.01)
    assert caught.value.detail == {"dataset": "d", "wanted_bytes": 4}
    assert pool.waiting == 0
    del held


@pytest.mark.parametrize("deadline_seconds", [None, 0.02], ids=["cancelled", "deadline"])
async def test_what_is_granted_in_the_last_moment_is_given_back(deadline_seconds: float | None) -> None:
    pool = MemoryPool(LIMIT_BYTES)
    held = pool.reserve(10)
    task = asyncio.ensure_future(reserve(pool, 4, Waits(), deadline_seconds=deadline_seconds))
    await queued(pool, 1)
    held.free()
    # The grant is on its way: delivered in the next step, in which the task is also told to end.
    if deadline_seconds is None:
        task.cancel()
        expected: type[BaseException] = asyncio.CancelledError
    else:
        loop = asyncio.get_running_loop()
        ends = loop.time() + 2 * deadline_seconds
        while loop.time() < ends:
            pass  # the loop is busy beyond the deadline, as it may be
        expected = OutOfBudget
    kept: list[BaseException] = []
    try:
        (await task).free()
    except expected as error:
        kept.append(error)
    # Also while the exception is alive, and with it the frames of its traceback.
    assert pool.used_bytes == 0


async def test_a_cancelled_wait_lets_those_behind_it_go_on() -> None:
    pool, waits = MemoryPool(LIMIT_BYTES), Waits()
    held = pool.reserve(5)
    first = asyncio.ensure_future(reserve(pool, 9, waits))
    await queued(pool, 1)
    second = asyncio.ensure_future(reserve(pool, 5, waits))
    await queued(pool, 2)
    first.cancel()
    assert (await second).size_bytes == 5
    with pytest.raises(asyncio.CancelledError):
        await first
    del held


def test_bytes_that_come_back_after_the_loop_has_closed_raise_nothing() -> None:
    pool = MemoryPool(LIMIT_BYTES)
    held = pool.reserve(10)
    loop = asyncio.new_event_loop()
    waiting = reserve(pool, 4, Waits())

    async def begin() -> None:
        # One step by hand: the coroutine is left in the middle of its wait, as by a loop that was stopped.
        waiting.send(None)

    loop.run_until_complete(begin())
    loop.close()
    assert pool.waiting == 1
    held.free()
    assert pool.used_bytes == 0
    waiting.close()
    assert pool.waiting == 0
