"""Datasets: kinds, the schema's owner, leases by a clock that the tests turn, and the two ways to an end."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pyarrow as pa
import pytest

from flight_server.concurrency import at_once
from flight_server.concurrency.broadcast_queue import EndOfQueue, WouldBlock
from flight_server.datasets.dataset import Dataset
from flight_server.frames import SchemaMessage
from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Commit, Kind, Retention
from flight_server.protocol.errors import (
    Conflict,
    DatasetDropped,
)
from tests.support.accepting import accept
from tests.support.clocks import Clock
from tests.support.frames import frame
from tests.support.queues import take_one

SCHEMA = SchemaMessage.of(pa.schema([("n", pa.int64())]))
OTHER = SchemaMessage.of(pa.schema([("n", pa.int32())]))


def shuffle(partitions: int = 3, producers: int | None = None) -> Dataset:
    return Dataset("s", kind=Kind.SHUFFLE, partitions=partitions, producers=producers)


def write(
    dataset: Dataset, producer: int, attempt: str, *places: int, pool: MemoryPool | None = None
) -> bool:
    """Write and commit an attempt of one row for each place; whether it was the last that was declared."""
    writing = dataset.begin_attempt(producer, attempt)
    for place in places:
        writing.publish(place, frame(f"{producer}{attempt}{place}".encode(), pool=pool))
    return dataset.commit(writing, Commit(len(places), len(places)))


def contents(dataset: Dataset, index: int) -> list[bytes]:
    with closing(dataset.partition(index).subscribe()) as reader:
        found: list[bytes] = []
        while True:
            try:
                payload = take_one(reader).at_hand()
            except EndOfQueue:
                return found
            assert payload is not None
            found.append(payload.data)


async def test_a_reader_that_waits_for_the_schema_of_a_dataset_that_is_dropped_is_told() -> None:
    dataset = Dataset("d")
    waiting = asyncio.ensure_future(dataset.described())
    await asyncio.sleep(0)
    dataset.drop()
    with pytest.raises(DatasetDropped):
        await waiting


async def test_a_reader_that_waits_for_the_schema_of_a_shuffle_that_is_sealed_without_one_is_told() -> None:
    dataset = shuffle()
    waiting = asyncio.ensure_future(dataset.described())
    await asyncio.sleep(0)
    accept(dataset, {})
    dataset.close()
    for told in (waiting, asyncio.ensure_future(dataset.described())):
        with pytest.raises(Conflict, match="dataset 's' was sealed without a schema"):
            await asyncio.wait_for(told, 20)


async def test_readers_of_a_replaced_stream_wait_for_no_producer_that_cannot_come() -> None:
    dataset, without_schema = Dataset("d", partitions=3, schema=SCHEMA), Dataset("d")
    begun, empty = dataset.begin_stream(0), dataset.partition(1).subscribe()
    waiting = asyncio.ensure_future(without_schema.described())
    await asyncio.sleep(0)
    dataset.replaced()
    without_schema.replaced()
    for reader in (empty, dataset.partition(2).subscribe()):
        with pytest.raises(DatasetDropped, match="'d' was overwritten"):
            take_one(reader)
    with pytest.raises(DatasetDropped, match="'d' was overwritten"):
        await asyncio.wait_for(waiting, 20)
    begun.publish(frame(b"x"))
    dataset.end_stream(begun)
    assert contents(dataset, 0) == [b"x"]


def test_a_dropped_dataset_takes_no_more_and_gives_everything_back() -> None:
    pool = MemoryPool(None)
    dataset = shuffle()
    write(dataset, 0, "a", 0, 1, pool=pool)
    writing = dataset.begin_attempt(1, "a")
    writing.publish(2, frame(10, pool=pool))
    reader = dataset.partition(1).subscribe()
    dataset.drop()
    dataset.drop()
    assert pool.used_bytes == 0
    for index in (1, 2):
        with pytest.raises(DatasetDropped, match=f"'s' was dropped while partition {index} was in use"):
            take_one(reader if index == 1 else dataset.partition(2).subscribe())
    with pytest.raises(Conflict, match="discarded"):
        writing.publish(2, frame(10, pool=pool))
    with pytest.raises(Conflict, match="dropped"):
        dataset.begin_attempt(2, "a")
    with pytest.raises(Conflict, match="dropped"):
        accept(dataset, None)


def test_an_attempt_cannot_commit_between_the_choice_and_the_seal_and_is_discarded_with_that() -> None:
    pool = MemoryPool(None)
    dataset = shuffle()
    write(dataset, 0, "a", 0, pool=pool)
    late = dataset.begin_attempt(0, "late")
    accept(dataset, {0: "a"})
    dataset.begin_attempt(1, "a").publish(0, frame(10, pool=pool))
    with pytest.raises(Conflict, match="is being sealed: producer 0 attempt late comes too late; stop"):
        dataset.commit(late, Commit(0, 0))
    dataset.close()
    with pytest.raises(Conflict, match="was sealed with other attempts; stop this task"):
        late.publish(0, frame(10))
    assert contents(dataset, 0) == [b"0a0"]
    assert pool.used_bytes == 3


def test_a_seal_that_is_undone_leaves_the_attempts_and_shows_readers_nothing() -> None:
    pool = MemoryPool(None)
    dataset = shuffle(partitions=9)
    write(dataset, 0, "a", 1, 7, pool=pool)
    write(dataset, 0, "b", 7, 7, pool=pool)
    write(dataset, 1, "a", 0, 7, pool=pool)
    reader = dataset.partition(0).subscribe()
    for _ in range(2):
        accept(dataset, {0: "a", 1: "a"}, partition_bytes=1000)
        assert dataset.partition_count == 1
        with pytest.raises(WouldBlock):
            take_one(reader)
        at_once(dataset.giving_back())
        dataset.reopen()
        assert (dataset.partition_count, dataset.attempts.accepted) == (9, None)
    dataset.attempts.discard(next(iter(dataset.attempts)))  # (0, "a")
    assert write(dataset, 2, "a", 8, pool=pool) is False
    accept(dataset, None)
    dataset.close()
    assert [contents(dataset, index) for index in (0, 1, 7, 8)] == [[b"1a0"], [], [b"1a7"], [b"2a8"]]
    assert take_one(reader).rows == 1
    assert pool.used_bytes == 9


def test_a_shuffle_that_is_replaced_before_its_seal_ends_its_attempts_and_readers() -> None:
    pool = MemoryPool(None)
    dataset = shuffle()
    write(dataset, 0, "a", 0, pool=pool)
    zombie, reader = dataset.begin_attempt(0, "b"), dataset.partition(0).subscribe()
    dataset.replaced()
    with pytest.raises(DatasetDropped, match="'s' was overwritten"):
        take_one(reader)
    with pytest.raises(Conflict, match="the dataset was overwritten"):
        zombie.publish(0, frame(1))
    assert pool.used_bytes == 0


def test_a_shuffle_that_is_replaced_while_its_seal_is_undone_ends_its_attempts_and_readers() -> None:
    pool = MemoryPool(None)
    dataset = shuffle()
    write(dataset, 0, "a", 0, 1, pool=pool)
    accept(dataset, None)
    reader = dataset.partition(0).subscribe()
    steps = dataset.giving_back()
    next(steps)
    dataset.replaced()
    at_once(steps)
    dataset.reopen()
    with pytest.raises(DatasetDropped, match="'s' was overwritten"):
        take_one(reader)
    assert pool.used_bytes == 0


def test_a_shuffle_that_is_dropped_while_its_seal_is_undone_leaves_nothing() -> None:
    for done in range(4):
        pool = MemoryPool(None)
        dataset = shuffle()
        write(dataset, 0, "a", 0, 1, pool=pool)
        accept(dataset, None)
        steps = dataset.giving_back()
        for _ in range(done):
            next(steps)
        dataset.drop()
        at_once(steps)
        dataset.reopen()
        assert dataset.dropped
        assert pool.used_bytes == 0


def test_retention_in_seconds_counts_from_the_seal() -> None:
    clock = Clock()
    dataset = Dataset("d", retention=Retention(seconds=5), clock=clock)
    clock.now += 100
    assert not dataset.outlived
    dataset.end_stream(dataset.begin_stream(0))
    clock.now += 4.9
    assert not dataset.outlived
    clock.now += 0.1
    assert dataset.outlived
