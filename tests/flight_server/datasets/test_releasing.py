"""What has many frames releases them in steps, however few each of its parts has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from flight_server.concurrency import FEW, run_later
from flight_server.datasets.dataset import Dataset
from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Commit, Kind, Retention
from flight_server.protocol.errors import Conflict
from tests.support.accepting import accept
from tests.support.frames import frame

PARTS = 9
FRAMES = FEW // (PARTS - 1)


@pytest.fixture
def pool() -> Iterator[MemoryPool]:
    pool = MemoryPool(None)
    yield pool
    assert pool.used_bytes == 0


def written(pool: MemoryPool) -> Dataset:
    """A shuffle of a few attempts, each with a few frames for one partition."""
    dataset = Dataset("d", kind=Kind.SHUFFLE, partitions=PARTS)
    for producer in range(PARTS):
        attempt = dataset.begin_attempt(producer, "a")
        for _ in range(FRAMES):
            attempt.publish(producer, frame(10, pool=pool))
        dataset.commit(attempt, Commit(attempt.rows, FRAMES))
    return dataset


async def test_attempts_that_are_dropped_are_discarded_at_once_and_released_in_steps(
    pool: MemoryPool,
) -> None:
    dataset = written(pool)
    (attempt, *_) = dataset.attempts
    dataset.drop()
    with pytest.raises(Conflict, match="discarded"):
        attempt.commit(Commit(0, 0))
    assert pool.used_bytes == PARTS * FRAMES * 10
    await run_later()


async def test_attempts_that_are_not_accepted_are_released_in_steps(pool: MemoryPool) -> None:
    dataset = written(pool)
    accept(dataset, {})
    assert pool.used_bytes == PARTS * FRAMES * 10
    await run_later()


async def test_the_frames_of_one_attempt_are_handed_over_and_taken_back_in_steps(pool: MemoryPool) -> None:
    dataset = Dataset("d", kind=Kind.SHUFFLE)
    attempt = dataset.begin_attempt(0, "a")
    for _ in range(3 * FEW):
        attempt.publish(0, frame(10, pool=pool))
    dataset.commit(attempt, Commit(3 * FEW, 3 * FEW))
    handed_over = [len(dataset.partition(0).table) for _ in dataset.accepting(None, None)]
    taken_back = [len(attempt.frames) for _ in dataset.giving_back()]
    for moved in (handed_over, taken_back):
        assert max(more - fewer for fewer, more in pairwise([0, *moved, 3 * FEW])) <= FEW
    dataset.reopen()
    dataset.drop()
    await run_later()


@pytest.mark.parametrize("dropped", [True, False])
async def test_partitions_with_frames_are_released_in_steps(pool: MemoryPool, dropped: bool) -> None:
    dataset = written(pool)
    accept(dataset, dict.fromkeys(range(PARTS), "a"))
    dataset.close()
    if dropped:
        dataset.drop()
    else:
        del dataset
    assert pool.used_bytes == PARTS * FRAMES * 10
    await run_later()


async def test_frames_that_a_reader_has_passed_are_released_in_steps(pool: MemoryPool) -> None:
    dataset = Dataset("d", retention=Retention(readers=1))
    partition = dataset.begin_stream(0)
    for _ in range(FEW + 2):
        partition.publish(frame(10, pool=pool))
    partition.passed(0, FEW + 1, 0.0)
    assert partition.resident_bytes == 10
    assert pool.used_bytes == (FEW + 2) * 10
    await run_later()
    assert pool.used_bytes == 10
