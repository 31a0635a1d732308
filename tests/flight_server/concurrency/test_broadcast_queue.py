"""BroadcastQueue against a list: every guarantee of the module's text that does not need an event loop.

``QueueMachine`` drives a queue and its readers in any order and compares each answer with a model of lists.
Waiting and waking, which need a loop, are in ``test_broadcast_schedules``.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from flight_server.concurrency.broadcast_queue import (
    BroadcastQueue,
    EndOfQueue,
    Gone,
    Passes,
    QueueEnded,
    Subscription,
    WouldBlock,
)
from flight_server.protocol.errors import FlightShuffleError, ProducerFailed
from tests.support.examples import examples
from tests.support.queues import KeptItems, kept_queue, next_one, take_one


class Broken(FlightShuffleError):
    """What the machine fails a queue with."""


@dataclass
class Reader:
    """A subscription and what the model says of it."""

    subscription: Subscription[int]
    position: int
    closed: bool = False
    taken: list[int] = field(default_factory=list)


class QueueMachine(RuleBasedStateMachine):
    """A queue beside a list of all items ever published, and for each the number of readers past it."""

    readers = Bundle("readers")

    @initialize(retain_readers=st.sampled_from([None, 1, 2, 3]))
    def begin(self, retain_readers: int | None) -> None:
        self.retain_readers = retain_readers
        self.queue: BroadcastQueue[int] = kept_queue(retain_readers)
        self.items: list[tuple[int, int]] = []
        self.passes: list[int] = []
        self.first = 0
        self.ended = False
        self.cause: Broken | None = None
        self.open: list[Reader] = []

    @rule(sizes_bytes=st.lists(st.integers(0, 1000), min_size=1, max_size=4))
    def publish(self, sizes_bytes: list[int]) -> None:
        for size_bytes in sizes_bytes:
            self._publish(size_bytes)

    def _publish(self, size_bytes: int) -> None:
        number = len(self.items)
        if self.ended:
            with pytest.raises(QueueEnded):
                self.queue.publish(number, size_bytes)
        else:
            self.queue.publish(number, size_bytes)
            self.items.append((number, size_bytes))
            self.passes.append(0)

    @rule()
    def close(self) -> None:
        self.queue.close()
        self.ended = True

    @rule()
    def fail(self) -> None:
        cause = Broken(f"after {len(self.items)} items")
        self.queue.fail(cause)
        if self.cause is None:
            self.cause = cause
            self.first = len(self.items)
        self.ended = True

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.first = len(self.items)

    @rule(target=readers, start=st.sampled_from([0, 0, 0, 1, 2, 5, 30]))
    def subscribe(self, start: int) -> object:
        if self.cause is None and start < self.first:
            with pytest.raises(Gone) as gone:
                self.queue.subscribe(start)
            assert (gone.value.item, gone.value.first) == (start, self.first)
            return multiple()
        reader = Reader(self.queue.subscribe(start), start)
        self.open.append(reader)
        return reader

    @rule(reader=readers, times=st.integers(1, 8))
    def take(self, reader: Reader, times: int) -> None:
        for _ in range(times):
            self._take(reader)

    def _take(self, reader: Reader) -> None:
        if reader.closed:
            with pytest.raises(ValueError, match="closed"):
                take_one(reader.subscription)
            return
        if self.cause is not None:
            with pytest.raises(Broken) as broken:
                take_one(reader.subscription)
            assert broken.value is not self.cause
            assert broken.value.__cause__ is self.cause
            assert broken.value.args == self.cause.args
            return
        if reader.position < self.first:
            with pytest.raises(Gone):
                take_one(reader.subscription)
        elif reader.position < len(self.items):
            taken = take_one(reader.subscription)
            assert taken == self.items[reader.position][0]
            reader.taken.append(taken)
            reader.position += 1
        else:
            with pytest.raises(EndOfQueue if self.ended else WouldBlock):
                take_one(reader.subscription)

    @rule(
        reader=readers,
        count=st.integers(1, 8),
        size_bytes=st.sampled_from([0, 500, 1500, 9000]),
        part=st.floats(0, 1),
    )
    def take_a_run(self, reader: Reader, count: int, size_bytes: int, part: float) -> None:
        if reader.closed or self.cause is not None or not self.first <= reader.position < len(self.items):
            self._take(reader)  # which raises the same errors
            return
        wanted: list[tuple[int, int]] = []
        for item, item_bytes in self.items[reader.position : reader.position + count]:
            if wanted and sum(each for _, each in wanted) + item_bytes > size_bytes:
                break
            wanted.append((item, item_bytes))
        run = reader.subscription.next_run(count, size_bytes)
        assert run == [item for item, _ in wanted] == reader.subscription.next_run(count, size_bytes)
        taken = run[: round(part * len(run))]
        reader.subscription.take(len(taken))
        reader.taken += taken
        reader.position += len(taken)

    @rule(start=st.integers(0, 30), count=st.integers(0, 30))
    def pass_some(self, start: int, count: int) -> None:
        self.queue.passed(start, start + count)
        if self.retain_readers is None or self.cause is not None:
            return
        for index in range(max(start, self.first), min(start + count, len(self.items))):
            self.passes[index] += 1
        while self.first < len(self.items) and self.passes[self.first] >= self.retain_readers:
            self.first += 1

    @rule(reader=readers)
    def leave(self, reader: Reader) -> None:
        reader.subscription.close()
        reader.closed = True
        self.open = [each for each in self.open if each is not reader]

    @rule(reader=readers)
    def look_ahead(self, reader: Reader) -> None:
        ahead = range(max(reader.position, self.first), len(self.items))
        assert list(reader.subscription.upcoming()) == list(ahead)

    @invariant()
    def the_queue_says_what_the_lists_say(self) -> None:
        assert len(self.queue) == len(self.items)
        assert self.queue.first == self.first
        assert self.queue.ended == self.ended
        assert self.queue.failure is self.cause
        assert self.queue.total_bytes == sum(size for _, size in self.items)
        assert self.queue.subscriptions() == [reader.subscription for reader in self.open]
        assert list(self.queue.items(0, 1000)) == list(range(self.first, len(self.items)))

    @invariant()
    def each_reader_has_taken_exactly_its_items(self) -> None:
        for reader in self.open:
            start = reader.subscription.start
            assert reader.subscription.position == reader.position
            assert reader.taken == list(range(start, start + len(reader.taken)))
            left = self.items[max(reader.position, self.first) :]
            assert reader.subscription.lag_bytes == sum(size for _, size in left)


QueueMachine.TestCase.settings = settings(max_examples=examples(1), stateful_step_count=40)
TestQueueAgainstLists = QueueMachine.TestCase


async def test_a_subscription_with_a_stop_ends_before_that_item_open_closed_or_released() -> None:
    queue = kept_queue(1)
    with closing(queue.subscribe(1, 3)) as reader:
        for number in range(5):
            queue.publish(number, 10)
        assert reader.lag_bytes == 20
        assert list(reader.upcoming()) == [1, 2]
        assert [take_one(reader), take_one(reader)] == [1, 2]
        assert reader.lag_bytes == 0
        await reader.wait()  # returns at once
        with pytest.raises(EndOfQueue):
            take_one(reader)
        queue.passed(0, 5)
        with pytest.raises(EndOfQueue):
            take_one(reader)
        queue.fail(ProducerFailed("late"))
        with pytest.raises(ProducerFailed):
            take_one(reader)
    with closing(queue.subscribe(4, 9)) as short:
        assert short.lag_bytes == 0


async def test_an_overtaken_reader_is_told_so_each_time_and_never_given_a_later_item() -> None:
    queue = kept_queue(1)
    for number in range(4):
        queue.publish(number, 10)
    with closing(queue.subscribe()) as slow:
        assert take_one(slow) == 0
        queue.passed(0, 3)
        for ended in (False, True):
            if ended:
                queue.close()
            async with asyncio.timeout(10):
                await slow.wait()
                with pytest.raises(Gone) as gone:
                    await next_one(slow)
            assert (gone.value.item, gone.value.first) == (1, 3)
        assert list(slow.upcoming()) == [3]


async def test_a_reader_that_leaves_wakes_no_other_one_and_one_that_is_ended_wakes() -> None:
    queue = kept_queue(1)
    with closing(queue.subscribe()) as waiting, closing(queue.subscribe()) as ended:
        waits = asyncio.ensure_future(waiting.wait())
        await asyncio.sleep(0)
        for _ in range(3):
            queue.subscribe().close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not waits.done()
        ends = asyncio.ensure_future(ended.wait())
        await asyncio.sleep(0)
        ended.end(ProducerFailed("evicted"))
        async with asyncio.timeout(20):
            await ends
        queue.publish(1, 10)
        async with asyncio.timeout(20):
            await waits


def test_a_failure_releases_every_item_at_once() -> None:
    class Item:
        pass

    queue: BroadcastQueue[Item] = BroadcastQueue(KeptItems())
    item = Item()
    gone = weakref.ref(item)
    queue.publish(item, 1)
    reader = queue.subscribe()
    del item
    gc.disable()  # by reference counts alone: nothing waits for a collection
    try:
        queue.fail(ProducerFailed("broke off"))
        assert gone() is None
    finally:
        gc.enable()
    reader.close()


@given(
    st.integers(1, 3), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=12)
)
def test_passes_released_by_runs_are_those_that_counting_each_item_gives(
    wanted: int, runs: list[tuple[int, int, bool]]
) -> None:
    """Those that are given back were counted before, as of readers whose place has ended."""
    passes = Passes(wanted, 0)
    counted = [0] * 41
    first = 0
    given: list[tuple[int, int]] = []
    for begin, length, back in runs:
        (start, stop), by = (given.pop(), -1) if back and given else ((begin, begin + length), 1)
        if by == 1:
            given.append((start, stop))
        passes.add(start, stop, by)
        for index in range(max(start, first), stop):
            counted[index] += by
        while counted[first] >= wanted:
            first += 1
        assert passes.first == first
