"""What is reserved for datasets, partitions, attempts and frames is not less than what they take, and is a limit."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.frames.message import NO_DICTIONARIES, DictionaryMessage, Frame, Payload
from flight_server.kinds.changelog.holds import HOLD_BYTES, Holds
from flight_server.memory.accounts import (
    ATTEMPT_BYTES,
    DATASET_BYTES,
    DICTIONARY_BYTES,
    FRAME_BYTES,
    PARTITION_BYTES,
    RECORD_BYTES,
)
from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Commit, CreateRequest, HoldRequest, Kind, Retention
from flight_server.protocol.errors import OutOfBudget
from flight_server.storage.segments import SegmentSlice
from tests.support.accepting import accept
from tests.support.catalogues import new_catalogue
from tests.support.frames import on_disk

COUNT = 500
SLICE = on_disk(bytes(10))


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    with closing(new_catalogue(tmp_path, 1 << 36)) as each:
        yield each


def frame(number: int = 0, pool: MemoryPool | None = None) -> Frame:
    payload = Payload(bytes(300), (pool or MemoryPool(None)).reserve(300 + FRAME_BYTES))
    return Frame(
        rows=number + 1000,
        size_bytes=300,
        crc32c=(1 << 30) + number,
        metadata_crc32c=1 << 31,
        payload=payload,
    )


def taken_bytes(make: Callable[[int], object]) -> float:
    """What one of ``COUNT`` takes in RAM, by Python's own count."""
    gc.collect()
    tracemalloc.start(1)
    try:
        kept = [make(number) for number in range(COUNT)]
        gc.collect()
        # The list is not a part of any of them.
        return tracemalloc.get_traced_memory()[0] / COUNT - 9 * bool(kept)
    finally:
        tracemalloc.stop()


def do(times: int, work: Callable[[int], object]) -> None:
    for number in range(times):
        work(number)


def spilled(number: int) -> Frame:
    one = frame(number)
    one.slice = SLICE
    one.payload = None
    return one


@pytest.mark.parametrize(
    "options",
    [{}, {"durable": True}, {"kind": Kind.SHUFFLE, "partitions": 9, "retention": Retention(readers=2)}],
)
def test_a_dataset_with_a_partition_and_a_frame_takes_no_more_than_is_reserved(
    catalogue: Catalogue, options: dict[str, object]
) -> None:
    def make(number: int) -> Dataset:
        request = CreateRequest(f"dataset/with-a-longer-name-{number}", **options)  # type: ignore[arg-type]
        dataset, _ = catalogue.create(request, None)
        dataset.partition(0).publish(spilled(number))
        dataset.partition(0).seal()
        return dataset

    # Twice: what another test's thread allocates meanwhile is counted, too.
    each_bytes = min(taken_bytes(make), taken_bytes(lambda number: make(COUNT + number)))
    assert each_bytes <= DATASET_BYTES + RECORD_BYTES


def test_a_partition_takes_no_more_than_is_reserved(catalogue: Catalogue) -> None:
    dataset, _ = catalogue.create(CreateRequest("d", Kind.SHUFFLE, partitions=COUNT), None)

    def make(number: int) -> None:
        partition = dataset.partition(number)
        partition.publish(spilled(number))
        partition.seal()

    assert taken_bytes(make) <= PARTITION_BYTES + RECORD_BYTES


def test_an_attempt_takes_no_more_than_is_reserved(catalogue: Catalogue) -> None:
    dataset, _ = catalogue.create(CreateRequest("d", Kind.SHUFFLE, partitions=9), None)

    def make(number: int) -> None:
        attempt = dataset.begin_attempt(number, "123456")
        attempt.publish(3, spilled(number))
        attempt.commit(Commit(number + 1000, 1))

    assert taken_bytes(make) <= ATTEMPT_BYTES + RECORD_BYTES


@pytest.mark.parametrize("owner", ["", "€" * 300])
def test_a_hold_takes_no_more_than_is_reserved(owner: str) -> None:
    holds = Holds("d", 10.0)

    def make(number: int) -> None:
        words = f"{number} {owner}" if owner else None
        name = f"{number}".ljust(100, "x")
        request = HoldRequest("d", name, version=number + 1000, lease_seconds=0.25, owner=words)
        holds.make(holds.change(request, 0, 1 << 40, number + 0.25, None))

    assert taken_bytes(make) <= HOLD_BYTES + 4 * len(owner)
    assert len(holds) == COUNT
    holds.release(list(holds.named))


def test_a_dictionary_takes_no_more_than_is_reserved_when_it_has_left_ram(catalogue: Catalogue) -> None:
    dataset, _ = catalogue.create(CreateRequest("d"), None)
    partition = dataset.begin_stream(0)

    def make(number: int) -> None:
        room = catalogue.budget.metadata.reserve(DICTIONARY_BYTES, "a dictionary")
        payload = Payload(bytes(300), MemoryPool(None).reserve(300 + FRAME_BYTES))
        message = DictionaryMessage(
            size_bytes=300, crc32c=(1 << 30) + number, payload=payload, sequence=number + 1000, room=room
        )
        one = frame(number)
        one.dictionaries = NO_DICTIONARIES.replaced(number + 1000, message, delta=False)
        partition.publish(one)
        one.move_to(SLICE)
        message.move_to(SegmentSlice(SLICE.segment, number + (1 << 30), 300))

    assert taken_bytes(make) <= DICTIONARY_BYTES + RECORD_BYTES
    assert catalogue.budget.metadata.pool.used_bytes >= COUNT * DICTIONARY_BYTES


def test_a_frame_takes_no_more_than_is_reserved_in_ram_and_tens_of_bytes_when_it_has_left(
    catalogue: Catalogue,
) -> None:
    dataset, _ = catalogue.create(CreateRequest("d"), None)
    partition, pool = dataset.begin_stream(0), MemoryPool(None)
    in_ram = taken_bytes(lambda number: partition.publish(frame(number, pool)))
    assert in_ram <= 300 + FRAME_BYTES + RECORD_BYTES
    gc.collect()
    tracemalloc.start(1)
    before_bytes = tracemalloc.get_traced_memory()[0]
    other = catalogue.create(CreateRequest("other"), None)[0].begin_stream(0)
    for number in range(COUNT):
        one = frame(number, pool)
        other.publish(one)
        one.move_to(SLICE)
    del one
    left_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    tracemalloc.stop()
    assert left_bytes <= COUNT * RECORD_BYTES + DATASET_BYTES
    counted_bytes = catalogue.budget.metadata.pool.used_bytes
    assert 2 * COUNT * RECORD_BYTES <= counted_bytes <= 2 * (COUNT + 64) * RECORD_BYTES + 2 * DATASET_BYTES


def test_what_is_kept_comes_back_with_what_it_was_kept_for(catalogue: Catalogue) -> None:
    metadata = catalogue.budget.metadata.pool
    dataset, _ = catalogue.create(CreateRequest("d", Kind.SHUFFLE, partitions=100), None)
    attempt = dataset.begin_attempt(0, "a")
    for number in range(1000):
        attempt.publish(number % 100, frame(number))
    attempt.commit(Commit(sum(range(1000, 2000)), 1000))
    dataset.attempts.committed(attempt)
    accept(dataset, None)
    del attempt
    expected = DATASET_BYTES + 99 * PARTITION_BYTES + 1000 * RECORD_BYTES
    assert expected <= metadata.used_bytes <= expected + 100 * 4 * RECORD_BYTES
    catalogue.drop("d")
    del dataset
    assert metadata.used_bytes == 0


def test_a_full_account_refuses_what_is_new_with_a_typed_error_and_harms_nothing_else(tmp_path: Path) -> None:
    with closing(new_catalogue(tmp_path, 8 << 20)) as catalogue:
        first, _ = catalogue.create(CreateRequest("first"), None)
        partition = first.begin_stream(0)
        partition.publish(frame())
        many, _ = catalogue.create(CreateRequest("many", Kind.SHUFFLE, partitions=100_000), None)
        attempt = many.begin_attempt(0, "a")
        for number in range(3000):
            attempt.publish(number, spilled(number))
        attempt.commit(Commit(sum(range(1000, 4000)), 3000))
        many.attempts.committed(attempt)
        with pytest.raises(OutOfBudget, match=r"2999 more partitions of dataset 'many'.*--memory-limit"):
            accept(many, None)
        assert many.partitions() == []
        assert many.attempts.accepted is None
        with pytest.raises(OutOfBudget, match="no room for dataset 'more-"):
            do(1000, lambda number: catalogue.create(CreateRequest(f"more-{number}"), None))
        with pytest.raises(OutOfBudget, match="another frame's record"):
            do(1000, lambda number: partition.publish(spilled(number)))
        partition.seal()
        assert partition.totals.frames == 1 + len(list(partition.frames(1)))
        catalogue.drop("many")
        del many, attempt
        catalogue.create(CreateRequest("after"), None)


def test_no_more_datasets_are_made_than_may_be_and_their_own_names_stay_usable(tmp_path: Path) -> None:
    with closing(new_catalogue(tmp_path, 1 << 30, max_datasets=2)) as catalogue:
        for name in ("a", "b", "a"):
            catalogue.create(CreateRequest(name), None)
        with pytest.raises(OutOfBudget, match="--max-datasets"):
            catalogue.create(CreateRequest("c"), None)
        catalogue.install(catalogue.prepare(CreateRequest("a"), None))
        catalogue.drop("b")
        catalogue.create(CreateRequest("c"), None)
