"""Seals of staged writes: what a transaction remembers, and what a repeated seal does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flight_server.concurrency import slices
from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.datasets.transactions import ID_BYTES
from flight_server.kinds import seals
from flight_server.protocol import Commit, CreateRequest, Kind, SealRequest, Transaction, WriteMode
from flight_server.protocol.errors import Conflict, FlightShuffleError, InvalidRequest, NotFound
from tests.support.catalogues import expired
from tests.support.frames import frame
from tests.support.sealing import SCHEMA


def staged(catalogue: Catalogue, write: str, mode: WriteMode = WriteMode.APPEND) -> Dataset:
    """A staged write of one frame, for partition 1 of 3."""
    request = CreateRequest("d", Kind.SHUFFLE, partitions=3, mode=mode, write=write)
    dataset = catalogue.stage(request, None)[0]
    attempt = dataset.begin_attempt(0, "a")
    attempt.publish(1, frame(100, pool=catalogue.budget.frames))
    dataset.commit(attempt, Commit(attempt.rows, 1))
    return dataset


async def seal(
    catalogue: Catalogue,
    dataset: Dataset,
    transaction: Transaction | None = None,
    attempts: dict[int, str] | None = None,
) -> Dataset:
    """Seal a staged write of :func:`staged`; the dataset that has its frames now."""
    durability: Any = SimpleNamespace(catalogue=catalogue)  # not durable, so nothing of it is needed but this
    request = SealRequest(
        "d", dataset.generation, {0: "a"} if attempts is None else attempts, None, transaction
    )
    sealed = await seals.seal(durability, dataset, request)
    found = catalogue.find("d")
    assert found.generation == sealed.generation
    return found


async def test_an_append_takes_partitions_with_frames_only_and_the_first_one_is_as_it_was_created(
    catalogue: Catalogue,
) -> None:
    first = await seal(catalogue, staged(catalogue, "w1"))
    assert first.partition_count == 3
    assert await seal(catalogue, staged(catalogue, "w2")) is first
    assert first.partition_count == 4
    assert [first.partition(index).totals.frames for index in range(4)] == [0, 1, 0, 1]
    with pytest.raises(NotFound):
        first.partition(4)


async def test_appends_without_rows_take_nothing_and_give_nothing_back(catalogue: Catalogue) -> None:
    request = CreateRequest("d", Kind.SHUFFLE, partitions=3, mode=WriteMode.APPEND, write="first")
    await seal(catalogue, catalogue.stage(request, None)[0], attempts={})
    before = catalogue.budget.metadata.pool.used_bytes
    for time in range(3):
        dataset = catalogue.stage(replace(request, write=f"w{time}"), None)[0]
        found = await seal(catalogue, dataset, Transaction("q", time), attempts={})
        del dataset
        assert found.partition_count == 3
        assert found.transactions.last("q") == time
        assert catalogue.budget.metadata.pool.used_bytes == before + ID_BYTES


@pytest.mark.parametrize(("most_bytes", "frames"), [(1, [1, 1, 2, 1]), (200, [2, 2, 1]), (1000, [5])])
async def test_neighbours_become_one_partition_up_to_a_size_also_where_they_are_the_first_ones(
    catalogue: Catalogue, most_bytes: int, frames: list[int]
) -> None:
    durability: Any = SimpleNamespace(catalogue=catalogue)
    for time in range(2):
        request = CreateRequest("d", Kind.SHUFFLE, partitions=9, mode=WriteMode.APPEND, write=f"w{time}")
        dataset = catalogue.stage(request, None)[0]
        for producer, partition, count in ((2, 7, 1), (0, 1, 1), (1, 2, 1), (3, 5, 2)):
            attempt = dataset.begin_attempt(producer, "a")
            for _ in range(count):
                attempt.publish(partition, frame(100, pool=catalogue.budget.frames))
            dataset.commit(attempt, Commit(attempt.rows, count))
        accepted = dict.fromkeys(range(4), "a")
        wanted = SealRequest("d", dataset.generation, accepted, partition_bytes=most_bytes)
        sealed = await seals.seal(durability, dataset, wanted)
        found = catalogue.find("d")
        assert found.partition_count == (time + 1) * len(frames)
        first = time * len(frames)
        assert sealed.partition_bytes == {first + at: 100 * count for at, count in enumerate(frames)}
        if not time:
            assert (await seals.seal(durability, dataset, wanted)).partition_bytes == sealed.partition_bytes
        del dataset, attempt


async def test_a_dataset_without_a_schema_gets_that_of_what_is_appended(catalogue: Catalogue) -> None:
    first = await seal(catalogue, staged(catalogue, "w1"))
    late = staged(catalogue, "w2")
    late.describe(SCHEMA)
    assert first.schema is None
    assert await seal(catalogue, late) is first
    assert first.schema is SCHEMA


async def test_a_first_append_that_is_sealed_again_does_not_forget_the_later_ones(
    catalogue: Catalogue,
) -> None:
    first = staged(catalogue, "w0")
    await seal(catalogue, first, Transaction("q", 0))
    await seal(catalogue, staged(catalogue, "w1"), Transaction("q", 1, 0))
    await seal(catalogue, first, Transaction("q", 0))
    assert catalogue.find("d").transactions.last("q") == 1


async def test_a_write_with_a_transaction_is_made_once_in_any_mode_also_after_an_overwrite(
    catalogue: Catalogue,
) -> None:
    overwrite, append = WriteMode.OVERWRITE, WriteMode.APPEND
    first = await seal(catalogue, staged(catalogue, "w0", overwrite), Transaction("job", 1))
    for time, mode in enumerate([overwrite, append]):
        again = staged(catalogue, f"again{time}", mode)
        assert await seal(catalogue, again, Transaction("job", 1)) is first
        assert again.dropped
    assert first.rows == 1
    other = await seal(catalogue, staged(catalogue, "w1", overwrite))
    assert await seal(catalogue, staged(catalogue, "w2", append), Transaction("job", 1)) is other
    assert other.rows == 1
    request = CreateRequest(
        "d", Kind.SHUFFLE, mode=WriteMode.NEW, write="w3", transaction=Transaction("job", 1)
    )
    assert catalogue.stage(request, None) == (other, False)
    with pytest.raises(Conflict, match="'job' is to follow 1, and the dataset was overwritten since"):
        await seal(catalogue, staged(catalogue, "w4", append), Transaction("job", 2, 1))
    catalogue.drop("d")
    new = await seal(catalogue, staged(catalogue, "w5", overwrite), Transaction("job", 1))
    assert new.rows == 1


@pytest.mark.parametrize("mode", [WriteMode.APPEND, WriteMode.OVERWRITE])
async def test_a_write_that_was_overtaken_is_refused_before_a_row_is_sent_and_at_its_seal(
    catalogue: Catalogue, mode: WriteMode
) -> None:
    early = staged(catalogue, "early", mode)
    for number in (3, 9):
        await seal(catalogue, staged(catalogue, f"w{number}", mode), Transaction("job", number))
    late = Transaction("job", 5)
    with pytest.raises(Conflict, match="number 5 of transaction id 'job' was never committed, and 9 was"):
        await seal(catalogue, early, late)
    request = CreateRequest("d", Kind.SHUFFLE, mode=mode, write="late", transaction=late)
    with pytest.raises(Conflict, match="was never committed"):
        catalogue.stage(request, None)
    found = catalogue.find("d")
    assert found.rows == (2 if mode is WriteMode.APPEND else 1)
    assert catalogue.stage(replace(request, transaction=Transaction("job", 3)), None) == (found, False)


async def test_a_version_whose_predecessor_is_not_there_is_refused_and_stays_staged(
    catalogue: Catalogue,
) -> None:
    for version, after in ((0, None), (1, 0)):
        await seal(catalogue, staged(catalogue, f"w{version}"), Transaction("q", version, after))
    late = staged(catalogue, "w3")
    with pytest.raises(Conflict, match="is to follow 2, and the dataset has those up to 1"):
        await seal(catalogue, late, Transaction("q", 3, 2))
    assert catalogue.find("d").partition_count == 4
    assert catalogue.find("d", late.generation) is late


def large(catalogue: Catalogue, write: str, mode: WriteMode) -> Dataset:
    """A staged write of 40 frames, of 20 partitions."""
    request = CreateRequest("d", Kind.SHUFFLE, partitions=20, mode=mode, write=write)
    dataset = catalogue.stage(request, None)[0]
    attempt = dataset.begin_attempt(0, "a")
    for number in range(40):
        attempt.publish(number % 20, frame(100, pool=catalogue.budget.frames))
    dataset.commit(attempt, Commit(attempt.rows, 40))
    return dataset


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run after each step."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", -1.0)


@pytest.mark.parametrize("passes", [1, 3, 10, 25, 45])
@pytest.mark.parametrize("mode", [WriteMode.NEW, WriteMode.APPEND])
async def test_a_seal_that_is_cancelled_between_two_steps_is_whole(
    catalogue: Catalogue, small_steps: None, mode: WriteMode, passes: int
) -> None:
    before = 0
    if mode is WriteMode.APPEND:
        before = (await seal(catalogue, large(catalogue, "w0", WriteMode.NEW))).partition_count
    dataset = large(catalogue, "w1", mode)
    sealing = asyncio.ensure_future(seal(catalogue, dataset))
    for _ in range(passes):
        await asyncio.sleep(0)
    sealing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sealing
    found = catalogue.find("d")
    assert [partition.totals.frames for partition in found.partitions()] == [2] * (before + 20)
    assert (await seal(catalogue, found, attempts={0: "a"})) is found


async def test_readers_see_nothing_of_an_append_before_its_last_step(
    catalogue: Catalogue, small_steps: None
) -> None:
    target = await seal(catalogue, large(catalogue, "w0", WriteMode.NEW))
    sealing = asyncio.ensure_future(seal(catalogue, large(catalogue, "w1", WriteMode.APPEND)))
    seen = set()
    while not sealing.done():
        await asyncio.sleep(0)
        seen.add((target.partition_count, sum(each.totals.frames for each in target.partitions())))
    assert seen == {(20, 40), (40, 80)}


@pytest.mark.parametrize("passes", [1, 5, 20, 30])
async def test_a_dataset_that_is_dropped_between_two_steps_of_its_seal_leaves_nothing(
    catalogue: Catalogue, small_steps: None, passes: int
) -> None:
    dataset = large(catalogue, "w1", WriteMode.NEW)
    sealing = asyncio.ensure_future(seal(catalogue, dataset))
    for _ in range(passes):
        await asyncio.sleep(0)
    catalogue.drop("d", dataset.generation)
    with pytest.raises(FlightShuffleError, match="dropped"):
        await sealing
    del sealing  # its error has this frame
    assert catalogue.get("d") is None
    assert catalogue.budget.frames.used_bytes == catalogue.budget.metadata.pool.used_bytes


async def test_an_append_whose_target_is_dropped_between_two_steps_takes_the_name_when_it_is_sealed_again(
    catalogue: Catalogue, small_steps: None
) -> None:
    await seal(catalogue, large(catalogue, "w0", WriteMode.NEW))
    dataset = large(catalogue, "w1", WriteMode.APPEND)
    sealing = asyncio.ensure_future(seal(catalogue, dataset))
    for _ in range(20):
        await asyncio.sleep(0)
    catalogue.drop("d")
    with pytest.raises(Conflict, match="seal again"):
        await sealing
    del sealing  # its error has this frame
    assert await seal(catalogue, dataset) is dataset
    assert sum(partition.totals.frames for partition in dataset.partitions()) == 40


async def test_an_append_that_is_dropped_between_any_two_steps_of_its_seal_is_not_said_to_be_sealed(
    catalogue: Catalogue, small_steps: None
) -> None:
    target = await seal(catalogue, large(catalogue, "w0", WriteMode.NEW))
    for passes in range(1, 200):
        dataset = large(catalogue, f"w{passes}", WriteMode.APPEND)
        sealing = asyncio.ensure_future(seal(catalogue, dataset))
        for _ in range(passes):
            await asyncio.sleep(0)
        if target.partition_count > 20:
            break
        await catalogue.remove("d", dataset.generation, staged=True)
        with pytest.raises(FlightShuffleError, match="dropped"):
            await sealing
        assert target.partition_count == 20
    assert await sealing is target
    assert passes > 40


async def test_an_append_whose_seal_is_repeated_while_it_ends_is_sealed_for_both(
    catalogue: Catalogue, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await seal(catalogue, large(catalogue, "w0", WriteMode.NEW))
    for passes in range(1, 30):
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1.0)
        dataset = large(catalogue, f"w{passes}", WriteMode.APPEND)
        first = asyncio.ensure_future(seal(catalogue, dataset))
        for _ in range(passes):
            await asyncio.sleep(0)
        second = asyncio.ensure_future(seal(catalogue, dataset))
        await asyncio.sleep(0)
        assert not first.done()
        monkeypatch.setattr(slices, "SLICE_SECONDS", 60.0)  # the rest is one step
        assert [*await asyncio.gather(first, second)] == [target] * 2
        assert target.partition_count == 20 * (passes + 1)


async def test_no_lease_ends_during_a_seal(catalogue: Catalogue, small_steps: None) -> None:
    dataset = large(catalogue, "w", WriteMode.NEW)
    sealing = asyncio.ensure_future(seal(catalogue, dataset))
    while not sealing.done():
        await asyncio.sleep(0)
        dataset.used_at -= 1e6
        assert sealing.done() or expired(catalogue) == []
    assert sealing.result() is dataset


@pytest.mark.parametrize("mode", [WriteMode.NEW, WriteMode.OVERWRITE])
async def test_a_seal_that_is_refused_leaves_all_partitions(catalogue: Catalogue, mode: WriteMode) -> None:
    durability: Any = SimpleNamespace(catalogue=catalogue)
    dataset = large(catalogue, "w", mode)
    narrower = SealRequest("d", dataset.generation, {0: "a", 1: "late"}, 20)
    dataset.partition_count = 30  # 10 have no frames
    with pytest.raises(Conflict, match="not committed"):
        await seals.seal(durability, dataset, narrower)
    with pytest.raises(InvalidRequest, match="frames for partition 19"):
        await seals.seal(durability, dataset, replace(narrower, attempts={0: "a"}, partitions=19))
    assert dataset.partition_count == 30
    await seals.seal(durability, dataset, replace(narrower, attempts={0: "a"}))
    assert dataset.partition_count == 20
