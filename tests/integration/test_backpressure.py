"""No schedule leads to a circular wait among producers, readers, spill and pool.

The model runs the server's own budget, catalogue, spiller, read-back and delivery. Only what is outside is
made up: messages come when a producer likes to send one, peers take what is written when they like to
(some never do), and the disk is a list that fails when the lot says so. ``ScheduledLoop`` draws the
order of all steps, threads included, and asserts the limits after each.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from flight_server import config
from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.frames.message import Frame, Payload
from flight_server.frames.records import COUNTED_AT_ONCE
from flight_server.memory.accounts import RECORD_BYTES, Budget
from flight_server.memory.pool import MemoryPool
from flight_server.node import Node
from flight_server.protocol import CreateRequest, Retention
from flight_server.protocol.checksums import crc32c
from flight_server.protocol.errors import FlightShuffleError, OutOfBudget, PartitionFailed, ReaderTooSlow
from flight_server.records import DiskTrouble
from flight_server.storage.disk import Disk
from flight_server.storage.segments import SegmentSlice
from flight_server.tiering.readback import Reader
from flight_server.transfer import FrameRange
from flight_server.transfer.delivery import READER_STALL_SECONDS
from tests.support.frames import on_disk
from tests.support.schedules import ScheduledLoop

LIMIT_BYTES = 64 << 10
# The deadlines are some pauses long, and no longer, because the spiller tries a full disk again four times in each
# second of a wait. Now and then a reader pauses for longer than the server allows.
LONG_PAUSE_SECONDS = 2.0
PAUSES_SECONDS = [*[0, 0, 0, 0.001, 0.1, LONG_PAUSE_SECONDS] * 3, READER_STALL_SECONDS + 1]
STALL_SECONDS, DEADLINE_SECONDS = 6 * LONG_PAUSE_SECONDS, 12 * LONG_PAUSE_SECONDS
# Every wait has a deadline, or ends when others reach theirs: this is far beyond all of them in a row.
FOREVER_SECONDS = 100_000.0
MAX_STEPS = 200_000


@dataclass
class Writer:
    """Takes messages as a segment writer does, until it is full or broken."""

    pool: MemoryPool
    broken: bool = False

    def append(self, messages: Sequence[bytes]) -> list[SegmentSlice]:
        if self.broken:
            raise DiskTrouble("the disk is broken", full=False)
        slices = []
        for message in messages:
            room = self.pool.try_reserve(len(message))
            if room is None:
                raise DiskTrouble("the disk is full", full=True)
            slices.append(on_disk(message, room=room))
        return slices


@dataclass
class Outcome:
    """What became of one stream."""

    frames: list[bytes] = field(default_factory=list)
    error: BaseException | None = None


class Model:
    """One server with its clients."""

    def __init__(self, loop: ScheduledLoop, *, disk_limit_bytes: int | None) -> None:
        self.loop = loop
        self.lot = loop.random
        self.producers = 0
        self.budget = Budget(LIMIT_BYTES, disk_limit_bytes)
        self.catalogue = Catalogue(self.budget, Disk(self.budget.disk), clock=loop.time)
        self.catalogue.disk.close()
        self.catalogue.disk.io_threads = loop.executor()  # type: ignore[assignment]
        self.writer = Writer(self.budget.disk)
        self.catalogue.disk.writer = lambda *_, **__: self.writer  # type: ignore[assignment]
        given = {"budget_deadline_seconds": DEADLINE_SECONDS, "stall_seconds": STALL_SECONDS}
        self.node = Node(config.load(given), self.catalogue)
        self.messages_at_once = 0
        self.always_room = disk_limit_bytes is None

    def check(self) -> None:
        """Check the limits that hold at any moment, see ``accounts``."""
        budget = self.budget
        records_bytes = self.producers * COUNTED_AT_ONCE * RECORD_BYTES
        for account, excess_bytes in ((budget.frames, records_bytes), (budget.sends, 0)):
            assert account.limit_bytes is not None
            assert account.used_bytes <= account.limit_bytes + excess_bytes, account.name
        excess_bytes = records_bytes + max(0, self.messages_at_once - LIMIT_BYTES // 8)
        assert budget.memory.used_bytes <= LIMIT_BYTES + excess_bytes
        assert budget.disk.limit_bytes is None or budget.disk.used_bytes <= budget.disk.limit_bytes
        assert self.loop.steps < MAX_STEPS, "the model does not come to an end"

    async def produce(self, dataset: Dataset, index: int, sizes: list[int], outcome: Outcome) -> None:
        partition = dataset.begin_stream(index)
        self.producers += 1
        try:
            for number, size_bytes in enumerate(sizes):
                await self.node.admission.room_for_arrivals("producer")
                await self.pause()
                message = bytes([number % 251]) * size_bytes
                room = await self.node.admission.admit(
                    size_bytes, dataset=dataset.name, partition=index, peer="producer"
                )
                frame = Frame(
                    rows=1, size_bytes=size_bytes, crc32c=crc32c(message), payload=Payload(message, room)
                )
                outcome.frames.append(message)
                del room
                partition.publish(frame)
                del frame
            dataset.end_stream(partition)
        except FlightShuffleError as error:
            partition.fail(PartitionFailed("its producer was refused"))
            outcome.error = error.fresh()
        except asyncio.CancelledError:
            partition.fail(PartitionFailed("its producer broke off"))

    async def read(self, dataset: Dataset, index: int, peer: Callable[[], Any], outcome: Outcome) -> None:
        reader = Reader(dataset.name, index, "reader")
        burst_bytes = self.lot.choice([0, LIMIT_BYTES // 32])

        async def write(data: bytes) -> None:
            await peer()
            outcome.frames.append(data)

        try:
            async with aclosing(
                self.node.reads.read(dataset, reader, FrameRange(), burst_bytes=burst_bytes)
            ) as runs:
                async for run in runs:
                    for outgoing in run:
                        await self.node.delivery.deliver(write, outgoing.data, reader, room=outgoing.room)
                    del outgoing
        except FlightShuffleError as error:
            outcome.error = error.fresh()
        except asyncio.CancelledError:
            # As gRPC does: a task would keep the exception, and its traceback everything that was held.
            outcome.error = asyncio.CancelledError()

    async def pause(self) -> None:
        """Some time goes by, or only a step."""
        await asyncio.sleep(self.lot.choice(PAUSES_SECONDS))

    async def never(self) -> None:
        await self.loop.create_future()

    async def keep_house(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.node.eviction.look()

    @contextmanager
    def running(self) -> Iterator[list[asyncio.Task[None]]]:
        tasks = [
            self.loop.create_task(self.node.spiller.run()),
            self.loop.create_task(self.keep_house()),
        ]
        yield tasks
        for task in tasks:
            task.cancel()


def run(seed: int, scenario: Callable[[Model], Any], *, disk_limit_bytes: int | None = None) -> None:
    """Run one schedule of a scenario, and check that nothing is left over after it."""
    loop = ScheduledLoop(seed)
    asyncio.set_event_loop(loop)
    # Bytes must come back when the last reference to them goes, not when the collector finds a cycle.
    gc.disable()
    try:
        model = Model(loop, disk_limit_bytes=disk_limit_bytes)
        loop.each_step = model.check
        loop.run_until_complete(asyncio.wait_for(scenario(model), FOREVER_SECONDS))
        for dataset in model.catalogue:
            model.catalogue.drop(dataset.name)
        del dataset
        left = asyncio.all_tasks(loop)
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        del left  # a task that was cancelled before its first step keeps what it was given
        for pool in (model.budget.memory, model.budget.disk):
            assert pool.used_bytes == 0, f"{pool.used_bytes} bytes left in {pool.name}"
            assert pool.waiting == 0
        assert len(model.node.waits) == 0
    finally:
        gc.enable()
        asyncio.set_event_loop(None)
        loop.close()


def make(model: Model, name: str, partitions: int, retention: Retention | None = None) -> Dataset:
    request = CreateRequest(name, partitions=partitions, retention=retention or Retention())
    return model.catalogue.create(request, None)[0]


def sizes_of(model: Model, count: int) -> list[int]:
    largest = model.budget.max_message_bytes
    return [model.lot.choice([1, largest // 16, largest // 3, largest]) for _ in range(count)]


async def fan_out(model: Model, *, stalled: int, cancelled: int, late: bool) -> int:
    """Producers of 3 partitions, twice the limit together; fast, slow, stalled and leaving readers.

    Returns how many readers that only pause the server has ended.
    """
    dataset = make(model, "d", 3, model.lot.choice([None, Retention(readers=2)]))
    wrote = [Outcome() for _ in range(3)]
    plans = [sizes_of(model, 12) for _ in range(3)]
    model.messages_at_once = sum(map(max, plans))
    with model.running():
        producers = [
            model.loop.create_task(model.produce(dataset, index, plans[index], wrote[index]))
            for index in range(3)
        ]
        if late:
            await asyncio.wait(producers)
        reads: list[tuple[int, Outcome]] = []
        readers = []
        # Retention counts on two whole readings, so these two are there in every case.
        for index in range(3):
            for _ in range(2):
                reads.append((index, Outcome()))
                readers.append(model.loop.create_task(model.read(dataset, index, model.pause, reads[-1][1])))
        others = []
        if dataset.retention.readers is None:
            for number in range(stalled + cancelled):
                peer = model.never if number < stalled else model.pause
                others.append(
                    model.loop.create_task(
                        model.read(dataset, model.lot.randrange(3), peer, Outcome()), name=f"other {number}"
                    )
                )
        for task in others[stalled:]:
            await model.pause()
            task.cancel()
        await asyncio.wait([*producers, *readers])
        for task in others:
            task.cancel()
        for task in [*producers, *readers]:
            task.result()
    for index, outcome in reads:
        whole = outcome.error is None
        assert isinstance(outcome.error, PartitionFailed | ReaderTooSlow | None)
        assert whole or wrote[index].error is not None or isinstance(outcome.error, ReaderTooSlow)
        assert outcome.frames == (
            wrote[index].frames if whole else wrote[index].frames[: len(outcome.frames)]
        )
    for outcome in wrote:
        assert isinstance(outcome.error, OutOfBudget | None)
        if model.always_room:
            assert outcome.error is None, "there was room on disk, and yet a producer was refused"
    return sum(isinstance(outcome.error, ReaderTooSlow) for _, outcome in reads)


SEEDS = pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(6), id="6_schedules"),
        # In parts: a test has a deadline, and a busy machine takes long over many schedules.
        pytest.param(range(6, 48), id="42_more", marks=pytest.mark.long),
        pytest.param(range(48, 80), id="another_32", marks=pytest.mark.long),
    ],
)
DISKS = pytest.mark.parametrize(
    "disk_limit_bytes",
    [
        pytest.param(None, id="disk"),
        pytest.param(LIMIT_BYTES, id="small", marks=pytest.mark.long),
        pytest.param(1, id="none"),
    ],
)


@SEEDS
@DISKS
@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
def test_readers_end_and_producers_end_under_any_schedule(
    seeds: range, disk_limit_bytes: int | None, late: bool
) -> None:
    async def crowd(model: Model) -> None:
        await fan_out(model, stalled=model.lot.randrange(4), cancelled=model.lot.randrange(3), late=late)

    for seed in seeds:
        run(
            seed,
            crowd,
            disk_limit_bytes=disk_limit_bytes,
        )


def test_some_of_these_schedules_end_a_reader_that_only_pauses() -> None:
    ended = 0

    async def crowd(model: Model) -> None:
        nonlocal ended
        ended += await fan_out(model, stalled=0, cancelled=0, late=False)

    for seed in range(16):
        run(seed, crowd)
    assert ended


@SEEDS
def test_a_disk_that_breaks_and_heals_holds_producers_back_and_loses_nothing(seeds: range) -> None:
    async def scenario(model: Model) -> None:
        model.always_room = False
        breaking = model.loop.create_task(break_and_heal(model))
        await fan_out(model, stalled=1, cancelled=1, late=False)
        breaking.cancel()

    async def break_and_heal(model: Model) -> None:
        while True:
            await model.pause()
            model.writer.broken = not model.writer.broken

    for seed in seeds:
        run(seed, scenario)


@SEEDS
def test_a_stream_that_is_cancelled_at_any_moment_leaves_nothing_behind(seeds: range) -> None:
    async def scenario(model: Model) -> None:
        dataset = make(model, "d", 4)
        plans = [sizes_of(model, 8) for _ in range(4)]
        model.messages_at_once = sum(map(max, plans))
        with model.running():
            tasks = [
                model.loop.create_task(model.produce(dataset, index, plans[index], Outcome()))
                for index in range(4)
            ] + [
                model.loop.create_task(model.read(dataset, model.lot.randrange(4), model.pause, Outcome()))
                for _ in range(8)
            ]
            while tasks:
                for _ in range(model.lot.randrange(40)):
                    await asyncio.sleep(0)
                task = tasks.pop(model.lot.randrange(len(tasks)))
                task.cancel()
                await asyncio.wait([task])

    for seed in seeds:
        run(seed, scenario, disk_limit_bytes=LIMIT_BYTES // 2)
