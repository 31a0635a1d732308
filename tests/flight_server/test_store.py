"""The catalogue: what a name leads to, at each moment; what is let go when; whom to spill first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.budget import Budget
from flight_server.dataset import Dataset
from flight_server.decoder import SchemaMessage
from flight_server.errors import (
    AlreadyExists,
    DatasetDropped,
    Draining,
    InvalidRequest,
    NotFound,
    ProducerFailed,
    StaleTicket,
)
from flight_server.protocol import CreateRequest, Kind, Retention, Ticket
from flight_server.store import Store
from tests.flight_server.test_dataset import SCHEMA, Clock
from tests.support.frames import frame, spill


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    store = Store(Budget(64 << 20, None), data_dir=tmp_path, lease_seconds=100, clock=clock)
    yield store
    store.close()


def create(store: Store, name: str, kind: Kind = Kind.STREAM, **options: object) -> Dataset:
    return store.create(CreateRequest(name, kind, **options), None)[0]  # type: ignore[arg-type]


def filled(store: Store, name: str, *sizes: int) -> Dataset:
    """A dataset of one partition with frames of these sizes."""
    dataset = create(store, name)
    for size in sizes:
        dataset.partition(0).publish(frame(size, pool=store.budget.frames))
    return dataset


def test_a_name_leads_to_its_dataset_and_a_generation_to_that_one_only(store: Store) -> None:
    dataset = create(store, "d")
    assert store.find("d") is store.find("d", dataset.generation) is dataset
    with pytest.raises(NotFound, match="there is no dataset 'e'"):
        store.find("e")
    store.drop("d")
    again = create(store, "d")
    assert again.generation != dataset.generation
    with pytest.raises(StaleTicket, match="get_flight_info again"):
        store.find("d", dataset.generation)


def test_creating_the_same_twice_gives_the_same(store: Store) -> None:
    request = CreateRequest("d", Kind.SHUFFLE, partitions=3, producers=2)
    first, made = store.create(request, None)
    assert made
    assert store.create(request, None) == (first, False)
    assert store.create(request, SCHEMA) == (first, False)
    assert first.schema == SCHEMA
    with pytest.raises(InvalidRequest, match="differs"):
        store.create(request, SchemaMessage.of(pa.schema([])))


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (CreateRequest("d", Kind.STREAM, partitions=3), "kind, producers"),
        (CreateRequest("d", Kind.SHUFFLE, partitions=4, producers=2), "partitions"),
        (CreateRequest("d", Kind.SHUFFLE, partitions=3), "producers"),
        (
            CreateRequest("d", Kind.SHUFFLE, partitions=3, producers=2, retention=Retention(readers=1)),
            "retention",
        ),
    ],
)
def test_creating_it_otherwise_is_refused_and_says_what_differs(
    store: Store, other: CreateRequest, what: str
) -> None:
    store.create(CreateRequest("d", Kind.SHUFFLE, partitions=3, producers=2), None)
    with pytest.raises(AlreadyExists, match=f"exists with another {what}; drop it first"):
        store.create(other, None)


def test_what_has_failed_frees_its_name(store: Store) -> None:
    failed = create(store, "d")
    failed.partition(0).fail(ProducerFailed("broke off"))
    again = create(store, "d", partitions=5)
    assert store.find("d") is again
    assert again.generation != failed.generation


def test_a_draining_server_creates_nothing(store: Store) -> None:
    store.draining = True
    with pytest.raises(Draining, match="begins nothing new"):
        create(store, "d")


def test_dropping_tells_those_who_read(store: Store) -> None:
    dataset = filled(store, "d", 10)
    reader = dataset.partition(0).subscribe()
    with pytest.raises(StaleTicket):
        store.drop("d", "another generation")
    assert store.drop("d", dataset.generation) is dataset
    with pytest.raises(DatasetDropped):
        reader.next_nowait()
    assert store.budget.frames.used_bytes == store.budget.metadata.pool.used_bytes
    with pytest.raises(NotFound):
        store.drop("d")


def test_a_replaced_dataset_lives_as_long_as_its_reader(store: Store) -> None:
    reader = filled(store, "d", 10).partition(0).subscribe()
    new = store.prepare(CreateRequest("d"), None)
    assert store.find("d") is not new
    store.install(new)
    assert store.find("d") is new
    assert reader.next_nowait().size_bytes == 10
    assert store.budget.frames.used_bytes == 10 + store.budget.metadata.pool.used_bytes
    reader.close()
    del reader
    assert store.budget.frames.used_bytes == store.budget.metadata.pool.used_bytes


@pytest.mark.parametrize(
    ("ticket", "found"),
    [
        (Ticket("one"), ("one", 0)),
        (Ticket("one/0"), ("one", 0)),
        (Ticket("one", 0), ("one", 0)),
        (Ticket("many/3"), ("many", 3)),
        (Ticket("many", 2), ("many", 2)),
        (Ticket("a/7"), ("a/7", 0)),
        (Ticket("a/7/0"), ("a/7", 0)),
    ],
)
def test_a_ticket_means_a_partition(store: Store, ticket: Ticket, found: tuple[str, int]) -> None:
    for name, partitions in (("one", 1), ("many", 4), ("a/7", 1), ("a", 10)):
        create(store, name, partitions=partitions)
    dataset, index = store.resolve(ticket)
    assert (dataset.name, index) == found


@pytest.mark.parametrize(
    ("ticket", "error"),
    [
        (Ticket("many"), InvalidRequest),
        (Ticket("many/4"), NotFound),
        (Ticket("many", 4), NotFound),
        (Ticket("many/x"), NotFound),
        (Ticket("many/0000000"), NotFound),
        (Ticket("none/0"), NotFound),
        (Ticket("many", 0, "old"), StaleTicket),
    ],
)
def test_a_ticket_that_means_none_is_refused(store: Store, ticket: Ticket, error: type[Exception]) -> None:
    create(store, "many", partitions=4)
    with pytest.raises(error):
        store.resolve(ticket)


def test_datasets_are_listed_by_prefix_in_order_of_their_names(store: Store) -> None:
    for name in ("b", "a/2", "a/1", "ab"):
        create(store, name)
    assert [dataset.name for dataset in store.listed("a")] == ["a/1", "a/2", "ab"]
    assert [dataset.name for dataset in store.listed("")] == ["a/1", "a/2", "ab", "b"]
    assert len(store) == 4


def test_what_nobody_renews_is_dropped_and_what_outlived_its_retention_is_let_go(
    store: Store, clock: Clock
) -> None:
    forgotten = filled(store, "forgotten", 10)
    kept = create(store, "kept", lease_seconds=1000)
    outlived = create(store, "outlived", retention=Retention(seconds=5), lease_seconds=1000)
    partition = outlived.begin_stream(0)
    partition.publish(frame(10))
    outlived.end_stream(partition)
    reading, waiting = partition.subscribe(), forgotten.partition(0).subscribe()
    assert store.expire() == []
    clock.now += 100
    assert {dataset.name for dataset in store.expire()} == {"forgotten", "outlived"}
    assert [dataset.name for dataset in store] == ["kept"]
    assert store.find("kept") is kept
    with pytest.raises(DatasetDropped):
        waiting.next_nowait()
    assert reading.next_nowait().size_bytes == 10


def test_the_oldest_dataset_is_spilled_first_and_only_as_much_as_is_wanted(store: Store) -> None:
    old, new = filled(store, "old", 10, 10), filled(store, "new", 10, 10)
    frames = list(old.partition(0).frames())
    ((writer, picked),) = store.pick_victims(15)
    assert writer is old.writer
    assert picked == frames
    groups = store.pick_victims(25)
    assert [writer for writer, _ in groups] == [old.writer, new.writer]
    assert sum(len(picked) for _, picked in groups) == 3
    assert sum(len(picked) for _, picked in store.pick_victims(1 << 30)) == 4
    for each in frames:
        spill(each)
    assert [writer for writer, _ in store.pick_victims(10)] == [new.writer]


def test_what_a_reader_is_near_is_spilled_last(store: Store) -> None:
    read, idle = filled(store, "read", *[10] * 5), filled(store, "idle", 10)
    with read.partition(0).subscribe():
        groups = store.pick_victims(40)
        assert [writer for writer, _ in groups] == [read.writer, idle.writer]
        near = list(read.partition(0).frames())[:2]
        assert not set(near) & set(groups[0][1])


def test_a_dataset_that_no_name_leads_to_is_spilled_too(store: Store) -> None:
    overwrite = store.prepare(CreateRequest("d"), None)
    overwrite.partition(0).publish(frame(10))
    assert [writer for writer, _ in store.pick_victims(10)] == [overwrite.writer]


def test_a_store_without_a_directory_spills_nothing() -> None:
    store = Store(Budget(64 << 20, None))
    filled(store, "d", 10)
    assert store.pick_victims(10) == []
    with pytest.raises(InvalidRequest, match="--data-dir"):
        create(store, "durable", durable=True)
    store.close()


def test_closing_lets_everything_go(store: Store) -> None:
    filled(store, "d", 10)
    store.close()
    store.close()
    assert store.budget.memory.used_bytes == 0
    assert len(store) == 0


async def test_many_names_cost_no_more_than_their_entries(store: Store) -> None:
    for number in range(2_000):
        create(store, f"d{number}", partitions=100_000)
    assert len(store.listed("d")) == 2_000
    assert sum(len(dataset.partitions()) for dataset in store) == 0
    await asyncio.sleep(0)
