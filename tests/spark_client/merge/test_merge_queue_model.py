"""The merge under thousands of schedules: every run ends, with every item once or the first error.

A deterministic scheduler permutes the steps of all actors: servers that send into one shared connection window,
streams that receive, decide, write to disk and push, a consumer that runs *only* when it was woken and takes the
items of a run one by one, another user of the same pool, and an actor that closes the merge at any moment. The queue
is the real one; the actors do the work of `spark_client.merge.stream_threads`, cut at each point where another thread
could run.

Limit: it does not show that the real threads hold their lock where they must. See ``test_merged``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.memory.pool import MemoryPool, Reservation
from spark_client.lanes.lane import Closed
from spark_client.merge.merge_queue import END, WAIT, Held, MergeQueue
from spark_client.merge.stream_threads import Order
from tests.support.examples import examples


@dataclass(frozen=True)
class Name:
    """One item: which stream's, and which one of it."""

    stream: int
    index: int


Names = tuple[Name, ...]
"""A run: consecutive items of one stream that were received together."""


@dataclass(frozen=True)
class OnDisk:
    names: Names


class StreamBrokeError(Exception):
    """A stream's own error."""


class DiskFullError(Exception):
    """The scratch could not be written."""


@dataclass
class Window:
    """The flow-control window that all streams of one connection share."""

    size_bytes: int
    used_bytes: int = 0


@dataclass
class Plan:
    """One run: the sizes of each stream's items, where it breaks, and the faults of the other actors."""

    sizes: list[list[int]]
    together: int
    breaks: dict[int, int]
    budget_bytes: int
    window_bytes: int
    order: Order
    consumer: str
    disk_full_after: int
    close_after: int
    outsider: bool
    choices: list[int]


plans = st.builds(
    Plan,
    sizes=st.lists(st.lists(st.integers(0, 120), max_size=6), min_size=1, max_size=5),
    together=st.integers(1, 4),
    breaks=st.dictionaries(st.integers(0, 4), st.integers(0, 6), max_size=1),
    budget_bytes=st.integers(1, 200),
    window_bytes=st.integers(1, 150),
    order=st.sampled_from(["arrival", "stream"]),
    consumer=st.sampled_from(["eager", "slow", "absent"]),
    disk_full_after=st.one_of(st.just(10_000), st.integers(0, 4)),
    close_after=st.one_of(st.just(10_000), st.integers(0, 60)),
    outsider=st.booleans(),
    choices=st.lists(st.integers(0, 2**16), min_size=1, max_size=80),
)


@dataclass
class World:
    """The state of one run. An actor is a generator; it yields where others may come between.

    It yields True when it can go on at once, and a condition when it has to wait for one.
    """

    plan: Plan
    pool: MemoryPool = field(init=False)
    queue: MergeQueue[Held[Names] | OnDisk] = field(init=False)
    window: Window = field(init=False)
    sent: list[list[Name]] = field(init=False)
    ready: deque[tuple[Name, Reservation | None]] = field(default_factory=deque)
    taken: list[Name] = field(default_factory=list)
    outcome: object = None
    first_error: BaseException | None = None
    woken: bool = False
    disk_writes: int = 0
    drained: int = 0

    def __post_init__(self) -> None:
        self.pool = MemoryPool(self.plan.budget_bytes)
        streams = len(self.plan.sizes)
        lines, feeders = (streams, 1) if self.plan.order == "stream" else (1, streams)
        self.queue = MergeQueue(lines, self.pool, feeders)
        self.window = Window(self.plan.window_bytes)
        self.sent = [[] for _ in self.plan.sizes]

    def wake_if(self, wake: bool) -> None:
        self.woken = self.woken or wake

    def fail(self, error: BaseException) -> None:
        if self.queue.fail(error):
            self.first_error = error
            self.ready.clear()
            self.woken = True

    def server(self, stream: int) -> Iterator[object]:
        for index, whole_bytes in enumerate(self.plan.sizes[stream]):
            # A message larger than the window travels in pieces.
            size_bytes = min(whole_bytes, self.window.size_bytes)
            while self.window.used_bytes + size_bytes > self.window.size_bytes:
                if self.queue.ended:
                    return  # the call was cancelled
                yield False
            self.window.used_bytes += size_bytes
            self.sent[stream].append(Name(stream, index))
            yield True

    def stream(self, stream: int) -> Iterator[object]:
        sizes = self.plan.sizes[stream]
        line = stream if self.plan.order == "stream" else 0
        next_index = 0
        while next_index < len(sizes):
            if self.plan.breaks.get(stream) == next_index:
                self.fail(StreamBrokeError(f"stream {stream}"))
                return
            while not self.sent[stream]:
                if self.queue.ended:
                    return
                yield False
            # Only items that have arrived, and none after a break.
            most = min(self.plan.together, self.plan.breaks.get(stream, len(sizes)) - next_index)
            names = tuple(self.sent[stream][:most])
            del self.sent[stream][: len(names)]
            next_index += len(names)
            for name in names:
                self.window.used_bytes -= min(sizes[name.index], self.window.size_bytes)
            yield True
            reservation = self.queue.admit(line, sum(sizes[name.index] for name in names))
            if reservation is not None:
                # One step with admit: the threads hold the lock over both.
                self.wake_if(self.queue.push(line, Held(names, reservation)))
                del reservation
                yield True
                continue
            yield True
            self.disk_writes += 1
            if self.disk_writes > self.plan.disk_full_after:
                self.fail(DiskFullError("disk"))
                return
            yield True
            self.wake_if(self.queue.push(line, OnDisk(names)))
            yield True
        self.drained += 1
        self.wake_if(self.queue.end(line))

    def consumer(self) -> Iterator[object]:
        while True:
            if self.ready:
                self.taken.append(self.ready.popleft()[0])
                yield True
                continue
            try:
                item = self.queue.take()
            except (StreamBrokeError, DiskFullError, Closed) as error:
                self.outcome = error
                return
            if item is END:
                self.outcome = END
                return
            if item is WAIT:
                while not self.woken:
                    yield False
                self.woken = False
                continue
            assert not isinstance(item, type(WAIT))
            # Load and hand-out are after the lock: another actor may fail or close the merge in between.
            yield True
            if isinstance(item, Held):
                self.ready.extend((name, item.reservation) for name in item.item)
            else:
                self.ready.extend((name, None) for name in item.names)
            del item
            yield True
            if self.queue.broken:
                self.ready.clear()

    def outsider(self) -> Iterator[object]:
        held: list[Reservation] = []
        for size_bytes in (30, 10, 70, 5):
            got = self.pool.try_reserve(size_bytes)
            if got is not None:
                held.append(got)
            yield True
            if len(held) > 1:
                held.pop(0)
            yield True

    def closer(self) -> Iterator[object]:
        for _ in range(self.plan.close_after):
            yield True
        if self.queue.close():
            self.ready.clear()
            self.woken = True


def run(plan: Plan) -> World:
    """Run to the end; check the invariants at each step."""
    world = World(plan)
    actors: list[Iterator[object]] = [world.server(i) for i in range(len(plan.sizes))]
    actors += [world.stream(i) for i in range(len(plan.sizes))]
    consumer = world.consumer()
    if plan.consumer != "absent":
        actors.append(consumer)
    if plan.outsider:
        actors.append(world.outsider())
    if plan.close_after < 10_000:
        actors.append(world.closer())
    runs = (sizes[i : i + plan.together] for sizes in plan.sizes for i in range(len(sizes)))
    largest = max((sum(sizes) for sizes in runs), default=0)
    step = 0
    while actors:
        # If the chosen actor has to wait, the next one is tried. If all wait, it is a hang.
        start = plan.choices[step % len(plan.choices)] + step // len(plan.choices)
        order = [actors[(start + i) % len(actors)] for i in range(len(actors))]
        if plan.consumer == "slow" and consumer in order and step % 7:
            order.remove(consumer)
            order.append(consumer)
        for actor in order:
            try:
                moved = next(actor)
            except StopIteration:
                actors.remove(actor)
                break
            if moved:
                break
        else:
            pytest.fail(f"hang: {len(actors)} actors wait, {world.queue._lines}")
        step += 1
        assert world.pool.used_bytes <= plan.budget_bytes + largest
        waiting = [plan.sizes[name.stream][name.index] for name, held in world.ready if held is not None]
        assert world.pool.used_bytes >= sum(waiting), "what is not taken yet must be accounted for"
        assert step < 10_000, "a run must end"
    if plan.consumer == "absent":
        # The consumer starts after the end, and gets the same items.
        world.woken = True
        for _ in consumer:
            world.woken = True
    return world


def check(world: World) -> None:
    """The guarantee."""
    plan = world.plan
    everything = [
        Name(stream, index) for stream, sizes in enumerate(plan.sizes) for index in range(len(sizes))
    ]
    assert len(set(world.taken)) == len(world.taken), "an item was taken twice"
    for stream in range(len(plan.sizes)):
        mine = [name.index for name in world.taken if name.stream == stream]
        assert mine == list(range(len(mine))), "a stream's items are out of order, or one is missing"
    if plan.order == "stream":
        assert world.taken == everything[: len(world.taken)]
    if world.outcome is END:
        assert sorted(world.taken, key=lambda n: (n.stream, n.index)) == everything
        assert world.first_error is None
    elif isinstance(world.outcome, Closed):
        assert plan.close_after < 10_000
    else:
        assert world.outcome is world.first_error
        assert world.first_error is not None
    assert world.pool.used_bytes == 0, "something is still reserved"


@settings(max_examples=examples(2), suppress_health_check=[HealthCheck.too_slow])
@given(plans)
def test_every_schedule_ends_with_every_item_once_or_the_first_error(plan: Plan) -> None:
    check(run(plan))


@settings(deadline=None)
@given(plans)
def test_an_ample_budget_never_touches_the_disk(plan: Plan) -> None:
    plan.budget_bytes, plan.outsider = 100_000, False
    world = run(plan)
    assert world.disk_writes == 0
    check(world)
