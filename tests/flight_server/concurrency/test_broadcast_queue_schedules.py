"""No lost wake-up: writer, readers, cancellations and the end of a queue in thousands of orders.

``explore`` runs one scenario on an event loop that picks the next ready callback at random, by a seed, instead
of first come, first served; so the same seed is the same schedule. The loop never sleeps: where nothing is
ready any more but a task is not done, that task waits for a wake-up that was lost, and ``Stuck`` says so.

That the exploration can fail is tested too: with each wake-up taken out of the queue in turn, it finds it.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import pytest

from flight_server.concurrency.broadcast_queue import BroadcastQueue, EndOfQueue, Subscription, WouldBlock
from flight_server.protocol.errors import FlightShuffleError, ProducerFailed
from tests.support.queues import KeptItems, kept_queue, next_one, take_one

SCHEDULES = 2_000
ITEMS = 6


class Stuck(Exception):
    """No task is ready, and at least one still waits."""


class _NeverBlocking(selectors.SelectSelector):
    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            raise Stuck
        return []


class _Shuffled(deque[Any]):
    """A ready queue that returns its entries in the schedule's order."""

    def __init__(self, order: random.Random) -> None:
        super().__init__()
        self._order = order

    def popleft(self) -> Any:
        place = self._order.randrange(len(self))
        self.rotate(-place)
        picked = super().popleft()
        self.rotate(place)
        return picked


class _PermutedLoop(asyncio.SelectorEventLoop):
    def __init__(self, order: random.Random) -> None:
        super().__init__(_NeverBlocking())
        self._ready = _Shuffled(order)


Scenario = Callable[[random.Random], Coroutine[Any, Any, None]]


def explore(scenario: Scenario, schedules: int = SCHEDULES) -> None:
    """Run the scenario under that many schedules; the first that fails names its seed."""
    for seed in range(schedules):
        order = random.Random(seed)
        loop = _PermutedLoop(order)
        try:
            loop.run_until_complete(scenario(order))
        except BaseException as error:
            error.add_note(f"schedule {seed}")
            raise
        finally:
            for task in asyncio.all_tasks(loop):
                task.get_coro().close()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            loop.close()


async def _pause(order: random.Random) -> None:
    for _ in range(order.randrange(4)):
        await asyncio.sleep(0)


async def _write(queue: BroadcastQueue[int], order: random.Random, *, fails: bool) -> None:
    for number in range(ITEMS):
        await _pause(order)
        queue.publish(number, 1)
    await _pause(order)
    if fails:
        queue.fail(ProducerFailed("broke off"))
    else:
        queue.close()


async def _read(reader: Subscription[int], order: random.Random, taken: list[int]) -> None:
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


async def _read_with_interruptions(reader: Subscription[int], order: random.Random, taken: list[int]) -> None:
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


def scenario_of(
    make: Callable[[], BroadcastQueue[int]] = kept_queue, *, fails: bool | None = None
) -> Scenario:
    """Readers that come early and late, from any start; some are interrupted, one leaves in the middle."""

    async def scenario(order: random.Random) -> None:
        queue = make()
        failing = order.random() < 0.3 if fails is None else fails
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
        assert not queue._waiting

    return scenario


def in_step(make: Callable[[], BroadcastQueue[int]] = kept_queue) -> Scenario:
    """The writer publishes an item only when every reader has taken the one before it: no reader may be
    left waiting for an item that is there, although a later one or the end would wake it.
    """

    async def scenario(order: random.Random) -> None:
        queue = make()
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

    return scenario


def test_every_reader_gets_every_item_and_the_end_under_every_schedule() -> None:
    explore(scenario_of())


def test_every_reader_gets_each_item_before_the_next_one_is_published() -> None:
    explore(in_step(), SCHEDULES // 4)


def test_a_reader_that_asks_after_the_end_is_not_made_to_wait() -> None:
    async def scenario(order: random.Random) -> None:
        queue = kept_queue()
        queue.close()
        with closing(queue.subscribe()) as reader:
            await reader.wait()
            with pytest.raises(EndOfQueue):
                take_one(reader)

    explore(scenario, 10)


class _NoWakeInPublish(BroadcastQueue[int]):
    def publish(self, item: int, size_bytes: int) -> None:
        self._wake, wake = lambda: None, self._wake  # type: ignore[method-assign]
        super().publish(item, size_bytes)
        self._wake = wake  # type: ignore[method-assign]


class _NoWakeInClose(BroadcastQueue[int]):
    def close(self) -> None:
        self._ended = True


class _NoWakeInFail(BroadcastQueue[int]):
    def fail(self, cause: FlightShuffleError) -> None:
        self._ended, self._cause = True, cause
        self.clear()


class _WakesOnlyOne(BroadcastQueue[int]):
    def _wake(self) -> None:
        for reader in list(self._waiting)[:1]:
            future = self._waiting.pop(reader)
            if not future.done():
                future.set_result(None)


class _WakesAfterALook(BroadcastQueue[int]):
    """Its readers look for an item and for the end in two steps, with a pause between them."""

    def subscribe(self, start: int = 0, stop: int | None = None) -> Subscription[int]:
        subscription = _TwoLooks(self, start, stop)
        self._subscriptions[subscription] = None
        return subscription


class _TwoLooks(Subscription[int]):
    __slots__ = ()

    async def wait(self) -> None:
        queue = self._queue
        if self._position < len(queue) or queue._ended:
            return
        await asyncio.sleep(0)
        future = asyncio.get_running_loop().create_future()
        queue._waiting[self] = future
        await future


@pytest.mark.parametrize(
    "scenario",
    [
        in_step(lambda: _NoWakeInPublish(KeptItems())),
        in_step(lambda: _WakesOnlyOne(KeptItems())),
        scenario_of(lambda: _NoWakeInClose(KeptItems()), fails=False),
        scenario_of(lambda: _NoWakeInFail(KeptItems()), fails=True),
        scenario_of(lambda: _WakesAfterALook(KeptItems())),
    ],
)
def test_the_exploration_finds_a_lost_wake_up(scenario: Scenario) -> None:
    with pytest.raises(Stuck):
        explore(scenario)
