"""Changes: every waiting task is woken, a cancelled one is removed, and no schedule loses a wake-up."""

from __future__ import annotations

import asyncio
from random import Random

from flight_server.concurrency.changes import Changes
from tests.support.schedules import explore


async def waiting_for(changes: Changes, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(changes.next()) for _ in range(count)]
    await asyncio.sleep(0)
    assert changes.waiting == count
    return tasks


async def test_a_change_wakes_every_task_that_waits_and_none_that_comes_later() -> None:
    changes = Changes()
    changes.tell()
    tasks = await waiting_for(changes, 3)
    changes.tell()
    assert changes.waiting == 0
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    (late,) = await waiting_for(changes, 1)
    assert not late.done()
    changes.tell()
    await late


async def watchers(order: Random) -> None:
    """They look and wait until they have seen the last of some changes."""
    last, number, changes = 5, 0, Changes()

    async def watch() -> None:
        while number < last:
            await changes.next()

    async def change() -> None:
        nonlocal number
        while number < last:
            for _ in range(order.randrange(3)):
                await asyncio.sleep(0)
            number += 1
            changes.tell()

    async def leave() -> None:
        watching = asyncio.ensure_future(watch())
        for _ in range(order.randrange(6)):
            await asyncio.sleep(0)
        watching.cancel()
        await asyncio.wait([watching])

    await asyncio.gather(watch(), change(), leave(), watch())
    assert changes.waiting == 0


def test_no_task_misses_the_last_change_under_any_schedule() -> None:
    explore(watchers, 500)
