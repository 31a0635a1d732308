"""The state machine of a partition, each transition of its table, and which frames leave RAM first."""

from __future__ import annotations

from contextlib import closing, suppress
from random import Random

import pytest

from flight_server.concurrency.broadcast_queue import EndOfQueue, Gone, Subscription, WouldBlock
from flight_server.datasets.partition import NEAR_FRAMES, Partition, PartitionState
from flight_server.frames.message import Frame, Payload
from flight_server.memory.pool import MemoryPool
from flight_server.protocol.errors import Conflict, DatasetDropped, InvalidRequest, ProducerFailed, Released
from tests.support.frames import frame, on_disk
from tests.support.queues import take_one


def failed() -> ProducerFailed:
    return ProducerFailed("the producer broke off")


@pytest.mark.parametrize(
    ("before", "verb", "after"),
    [
        ([], "publish", PartitionState.OPEN),
        ([], "seal", PartitionState.SEALED),
        ([], "fail", PartitionState.FAILED),
        ([], "drop", PartitionState.DROPPED),
        (["seal"], "seal", PartitionState.SEALED),
        (["seal"], "drop", PartitionState.DROPPED),
        (["fail"], "fail", PartitionState.FAILED),
        (["fail"], "drop", PartitionState.DROPPED),
        (["drop"], "fail", PartitionState.DROPPED),
        (["drop"], "drop", PartitionState.DROPPED),
        (["seal"], "publish", None),
        (["seal"], "fail", None),
        (["fail"], "publish", None),
        (["fail"], "seal", None),
        (["drop"], "publish", None),
        (["drop"], "seal", None),
    ],
)
def test_each_verb_in_each_state_does_what_the_table_says(
    before: list[str], verb: str, after: PartitionState | None
) -> None:
    partition = Partition("d", 3)

    def do(name: str) -> None:
        arguments = {"publish": (frame(10),), "fail": (failed(),)}.get(name, ())
        getattr(partition, name)(*arguments)

    for name in before:
        do(name)
    if after is None:
        with pytest.raises(Conflict, match=r"dataset 'd' partition 3 is"):
            do(verb)
    else:
        do(verb)
        assert partition.state is after


def test_a_frame_goes_when_as_many_readers_as_declared_have_passed_it() -> None:
    pool = MemoryPool(None)
    partition = Partition("d", 0, retain_readers=2)
    for number in range(3):
        partition.publish(frame(10, rows=number, pool=pool))
    partition.seal()
    partition.passed(0, None, now=0)
    assert pool.used_bytes == 30
    with closing(partition.subscribe()) as second:
        partition.places.take("second", second, now=0)
        partition.acknowledge("second", 1, now=0)
        assert pool.used_bytes == 20
        with pytest.raises(Released, match="frame 0 was released"):
            partition.subscribe(0)
        with pytest.raises(InvalidRequest, match="has 3 frames, and reader 'second' acknowledges 4"):
            partition.acknowledge("second", 4, now=0)
        partition.acknowledge("second", 3, now=0)
    assert pool.used_bytes == 0
    assert partition.totals.frames == 3


def test_what_lies_behind_every_reader_leaves_first_and_what_is_near_one_last() -> None:
    partition = Partition("d", 0)
    frames = [frame(10, rows=number) for number in range(12)]
    for each in frames:
        partition.publish(each)
    slow, fast = partition.subscribe(3), partition.subscribe(9)
    far = list(partition.victims(near=False))
    kept = {*range(3, 3 + NEAR_FRAMES), *range(9, 9 + NEAR_FRAMES)}
    assert far[:3] == frames[:3]
    assert {each.rows for each in far} == set(range(12)) - kept
    assert {each.rows for each in partition.victims(near=True)} == set(range(12))
    slow.close()
    fast.close()


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("count", [10, 200])  # few, and so many that the queue drops the released ones
def test_a_reader_whose_frames_retention_has_released_has_no_victims_there(count: int, *, near: bool) -> None:
    partition = Partition("d", 0, retain_readers=1)
    for number in range(count + 5):
        partition.publish(frame(10, rows=number))
    with closing(partition.subscribe()) as slow, closing(partition.subscribe()) as fast:
        take_one(slow)
        for _ in range(count + 1):
            take_one(fast)
        partition.places.take("fast", fast, now=0)
        partition.acknowledge("fast", count, now=0)
        kept = set() if near else set(range(fast.position, fast.position + NEAR_FRAMES))
        assert {each.rows for each in partition.victims(near=near)} == set(range(count, count + 5)) - kept


class Life:
    """A partition to which anything may happen, and every frame that was ever in it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.partition = Partition("d", 0, retain_readers=self.random.choice([None, 1, 2]))
        self.frames: list[Frame] = []
        self.readers: list[Subscription[Frame]] = []
        self.sending: list[Payload | None] = []

    def step(self) -> None:
        verbs = [
            self.publish,
            self.publish_what_is_on_disk,
            self.spill,
            self.read,
            self.read_back,
            self.leave,
            self.pass_all,
        ]
        rare = [self.seal, self.fail, self.drop, self.corrupt, self.reopen]
        with suppress(Conflict, DatasetDropped, ProducerFailed, Released):  # as the other tests say
            self.random.choice(verbs * 8 + rare)()

    def publish(self) -> None:
        one = frame(10, rows=len(self.frames))
        self.partition.publish(one)
        self.frames.append(one)

    def publish_what_is_on_disk(self) -> None:
        one = Frame(rows=1, size_bytes=10, crc32c=0, payload=None, slice=on_disk(b"0" * 10))
        self.partition.publish(one)
        self.frames.append(one)

    def spill(self) -> None:
        # Also one that was released while a thread was writing it.
        if self.frames:
            self.random.choice(self.frames).move_to(on_disk(b"0" * 10))

    def read(self) -> None:
        if not self.readers or self.random.random() < 0.2:
            self.readers.append(self.partition.subscribe(self.random.choice([0, len(self.frames) // 2])))
        with suppress(EndOfQueue, Gone, WouldBlock):
            self.sending = [take_one(self.random.choice(self.readers)).at_hand(), *self.sending[:2]]

    def read_back(self) -> None:
        for one in self.partition.frames():
            if not one.resident:
                self.sending = [Payload(b"0" * 10, MemoryPool(None).reserve(10)), *self.sending[:2]]
                assert self.sending[0] is not None
                one.share(self.sending[0])

    def pass_all(self) -> None:
        if self.random.random() < 0.2:
            self.partition.passed(0, None, now=0)

    def leave(self) -> None:
        if self.readers:
            self.readers.pop(self.random.randrange(len(self.readers))).close()

    def seal(self) -> None:
        self.partition.seal()

    def fail(self) -> None:
        self.partition.fail(failed())

    def drop(self) -> None:
        self.partition.drop()

    def corrupt(self) -> None:
        self.partition.corrupt(failed(), self.partition.epoch)

    def reopen(self) -> None:
        self.partition.reopen()


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 200))]
)
def test_the_bytes_in_ram_are_those_of_a_recount_whatever_has_happened(seed: int) -> None:
    life = Life(seed)
    for _ in range(100):
        life.step()
        recount = sum(each.size_bytes for each in life.partition.frames() if each.resident)
        assert life.partition.resident_bytes == recount
    for reader in life.readers:
        reader.close()
