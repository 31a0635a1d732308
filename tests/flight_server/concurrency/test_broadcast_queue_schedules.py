"""No lost wake-up: writer, readers, cancellations and the end of a queue in hundreds of orders.

Where nothing is ready any more but a task is not done, that task waits for a wake-up that was lost: ``Deadlock``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from random import Random
from typing import Any

import pytest

from flight_server.concurrency.broadcast_queue import BroadcastQueue, EndOfQueue, Subscription, WouldBlock
from flight_server.protocol.errors import ProducerFailed
from tests.support.queues import kept_queue, next_one, take_one
from tests.support.schedules import explore

ITEMS = 6

Scenario = Callable[[Random], Coroutine[Any, Any, None]]


async def _pause(order: Random) -> None:
    for _ in range(order.randrange(4)):
        await asyncio.sleep(0)


async def _write(queue: BroadcastQueue[int], order: Random, *, fails: bool) -> None:
    for number in range(ITEMS):
        await _pause(order)
        queue.publish(number, 1)
    await _pause(order)
    if fails:
        queue.fail(ProducerFailed("broke off"))
    else:
        queue.close()


async def _read(reader: Subscription[int], order: Random, taken: list[int]) -> None:
    """Take everything; sometimes in its two steps, in either order."""
    while True:
        await _pause(order)
        if order.random() < 0.2:
            await reader.wait()
        try:
            if order.random() < 0.5:
                taken.append(await next_one(reader))
            else:
                taken.append(take_one(reader))
        except WouldBlock:
            await reader.wait()
        except EndOfQueue:
            return


async def _read_with_interruptions(reader: Subscription[int], order: Random, taken: list[int]) -> None:
    """Read in tasks that are cancelled at any moment, each going on where the one before was cut off."""
    while True:
        attempt = asyncio.ensure_future(_read(reader, order, taken))
        for _ in range(order.randrange(1, 8)):
            await asyncio.sleep(0)
        if order.random() < 0.3:
            await asyncio.wait([attempt])  # this one may finish
        attempt.cancel()
        try:
            await attempt
        except asyncio.CancelledError:
            continue
        return


async def all_kinds_of_readers(order: Random) -> None:
    """Readers that come early and late, from any start; some are interrupted, one leaves in the middle."""
    queue = kept_queue()
    failing = order.random() < 0.3
    writer = asyncio.ensure_future(_write(queue, order, fails=failing))

    async def reader(start: int) -> None:
        await _pause(order)
        taken: list[int] = []
        read = _read_with_interruptions if order.random() < 0.5 else _read
        with closing(queue.subscribe(start)) as subscription:
            try:
                await read(subscription, order, taken)
            except ProducerFailed:
                assert failing
                assert taken == list(range(start, start + len(taken)))
            else:
                assert not failing
                assert taken == list(range(start, ITEMS))

    async def leaver() -> None:
        subscription = queue.subscribe()
        task = asyncio.ensure_future(_read(subscription, order, []))
        await _pause(order)
        if order.random() < 0.5:
            subscription.close()
        else:
            task.cancel()
        await asyncio.wait([task])
        subscription.close()
        task.cancelled() or task.exception()

    starts = [0, 0, order.randrange(ITEMS), ITEMS]
    await asyncio.gather(writer, leaver(), *(reader(start) for start in starts))
    assert queue.subscriptions() == []
    assert not queue._changes.waiting


async def in_step(order: Random) -> None:
    """The writer publishes an item only when every reader has taken the one before it: no reader may be left waiting
    for an item that is there, although a later one or the end would wake it.
    """
    queue = kept_queue()
    taken = [[asyncio.Event() for _ in range(ITEMS)] for _ in range(3)]

    async def read(events: list[asyncio.Event]) -> None:
        with closing(queue.subscribe()) as reader:
            while True:
                await _pause(order)
                await reader.wait()
                try:
                    events[take_one(reader)].set()
                except EndOfQueue:
                    return

    async def write() -> None:
        for number in range(ITEMS):
            await _pause(order)
            queue.publish(number, 1)
            for events in taken:
                await events[number].wait()
        queue.close()

    await asyncio.gather(write(), *(read(events) for events in taken))


@pytest.mark.parametrize("scenario", [all_kinds_of_readers, in_step])
def test_every_reader_gets_every_item_and_the_end_under_every_schedule(scenario: Scenario) -> None:
    explore(scenario, 500)
