"""The catalogue: which dataset a name means at each moment, and when a dataset is released."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.frames import SchemaMessage
from flight_server.protocol import CreateRequest, Kind, Retention, Ticket
from flight_server.protocol.errors import (
    AlreadyExists,
    DatasetDropped,
    InvalidRequest,
    NotFound,
    StaleTicket,
)
from tests.flight_server.datasets.test_dataset import SCHEMA
from tests.support.callers import anyone
from tests.support.catalogues import expired, new_catalogue
from tests.support.clocks import Clock
from tests.support.frames import frame
from tests.support.queues import take_one


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalogue(tmp_path: Path, clock: Clock) -> Iterator[Catalogue]:
    catalogue = new_catalogue(tmp_path, 64 << 20, lease_seconds=100, clock=clock)
    yield catalogue
    catalogue.close()


def create(catalogue: Catalogue, name: str, kind: Kind = Kind.STREAM, **options: object) -> Dataset:
    return catalogue.create(CreateRequest(name, kind, **options), None)[0]  # type: ignore[arg-type]


def filled(catalogue: Catalogue, name: str, *sizes: int) -> Dataset:
    """A dataset of one partition with frames of these sizes."""
    dataset = create(catalogue, name)
    for size in sizes:
        dataset.begin_stream(0).publish(frame(size, pool=catalogue.budget.frames))
    return dataset


def test_a_name_leads_to_its_dataset_and_a_generation_to_that_one_only(catalogue: Catalogue) -> None:
    dataset = create(catalogue, "d")
    assert catalogue.find("d") is catalogue.find("d", dataset.generation) is dataset
    with pytest.raises(NotFound, match="there is no dataset 'e'"):
        catalogue.find("e")
    catalogue.drop("d")
    again = create(catalogue, "d")
    assert again.generation != dataset.generation
    with pytest.raises(StaleTicket, match="get_flight_info again"):
        catalogue.find("d", dataset.generation)


def test_creating_the_same_twice_gives_the_same(catalogue: Catalogue) -> None:
    request = CreateRequest("d", Kind.SHUFFLE, partitions=3, producers=2)
    first, made = catalogue.create(request, None)
    assert made
    assert catalogue.create(request, None) == (first, False)
    assert catalogue.create(request, SCHEMA) == (first, False)
    assert first.schema == SCHEMA
    with pytest.raises(InvalidRequest, match="differs"):
        catalogue.create(request, SchemaMessage.of(pa.schema([])))


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
    catalogue: Catalogue, other: CreateRequest, what: str
) -> None:
    catalogue.create(CreateRequest("d", Kind.SHUFFLE, partitions=3, producers=2), None)
    with pytest.raises(AlreadyExists, match=f"exists with another {what}; drop it first"):
        catalogue.create(other, None)


def test_dropping_tells_those_who_read(catalogue: Catalogue) -> None:
    dataset = filled(catalogue, "d", 10)
    reader = dataset.partition(0).subscribe()
    with pytest.raises(StaleTicket):
        catalogue.drop("d", "another generation")
    assert catalogue.drop("d", dataset.generation) is dataset
    with pytest.raises(DatasetDropped):
        take_one(reader)
    assert catalogue.budget.frames.used_bytes == catalogue.budget.metadata.pool.used_bytes
    with pytest.raises(NotFound):
        catalogue.drop("d")


def test_a_replaced_dataset_lives_as_long_as_its_reader(catalogue: Catalogue) -> None:
    reader = filled(catalogue, "d", 10).partition(0).subscribe()
    new = catalogue.prepare(CreateRequest("d"), None)
    assert catalogue.find("d") is not new
    catalogue.install(new)
    assert catalogue.find("d") is new
    assert take_one(reader).size_bytes == 10
    assert catalogue.budget.frames.used_bytes == 10 + catalogue.budget.metadata.pool.used_bytes
    reader.close()
    del reader
    assert catalogue.budget.frames.used_bytes == catalogue.budget.metadata.pool.used_bytes


@pytest.mark.parametrize(
    ("ticket", "found"),
    [
        (b"one", ("one", 0)),
        (b"one/0", ("one", 0)),
        (b'{"dataset": "one", "partition": 0}', ("one", 0)),
        (b"many/3", ("many", 3)),
        (b'{"dataset": "many", "partition": 2}', ("many", 2)),
        (b"a/7", ("a", 7)),
        (b"a/x7/0", ("a/x7", 0)),
        (b'{"dataset": "a/x7"}', ("a/x7", 0)),
        (b'{"dataset": "a", "partition": 7}', ("a", 7)),
    ],
)
def test_a_ticket_means_a_partition(catalogue: Catalogue, ticket: bytes, found: tuple[str, int]) -> None:
    for name, partitions in (("one", 1), ("many", 4), ("a/x7", 1), ("a", 10)):
        create(catalogue, name, partitions=partitions)
    dataset, index = anyone(catalogue).resolve(Ticket.parse(ticket))
    assert (dataset.name, index) == found


@pytest.mark.parametrize(
    ("ticket", "error"),
    [
        (b"many", InvalidRequest),
        (b"many/4", NotFound),
        (b'{"dataset": "many", "partition": 4}', NotFound),
        (b'{"dataset": "many/2"}', InvalidRequest),
        (b"many/x", NotFound),
        (b"many/0000000", InvalidRequest),
        (b"none/0", NotFound),
        (b'{"dataset": "many", "partition": 0, "generation": "old"}', StaleTicket),
    ],
)
def test_a_ticket_that_means_none_is_refused(
    catalogue: Catalogue, ticket: bytes, error: type[Exception]
) -> None:
    create(catalogue, "many", partitions=4)
    with pytest.raises(error):
        anyone(catalogue).resolve(Ticket.parse(ticket))


def test_datasets_are_listed_by_prefix_in_order_of_their_names(catalogue: Catalogue) -> None:
    for name in ("b", "a/y", "a/x", "ab"):
        create(catalogue, name)
    assert [dataset.name for dataset in catalogue.listed("a")] == ["a/x", "a/y", "ab"]
    assert [dataset.name for dataset in catalogue.listed("")] == ["a/x", "a/y", "ab", "b"]
    assert len(catalogue) == 4


def test_a_dataset_without_renewal_is_dropped_and_one_that_outlived_its_retention_released(
    catalogue: Catalogue, clock: Clock
) -> None:
    forgotten = filled(catalogue, "forgotten", 10)
    kept = create(catalogue, "kept", lease_seconds=1000)
    outlived = create(catalogue, "outlived", retention=Retention(seconds=5), lease_seconds=1000)
    partition = outlived.begin_stream(0)
    partition.publish(frame(10))
    outlived.end_stream(partition)
    reading, waiting = partition.subscribe(), forgotten.partition(0).subscribe()
    assert expired(catalogue) == []
    clock.now += 100
    assert {dataset.name for dataset in expired(catalogue)} == {"forgotten", "outlived"}
    assert [dataset.name for dataset in catalogue] == ["kept"]
    assert catalogue.find("kept") is kept
    with pytest.raises(DatasetDropped):
        take_one(waiting)
    assert take_one(reading).size_bytes == 10


def test_nothing_is_durable_without_a_directory() -> None:
    catalogue = new_catalogue(None, 64 << 20)
    with pytest.raises(InvalidRequest, match="--data-dir"):
        create(catalogue, "durable", durable=True)
    catalogue.close()


def test_closing_lets_everything_go(catalogue: Catalogue) -> None:
    filled(catalogue, "d", 10)
    catalogue.close()
    catalogue.close()
    assert catalogue.budget.memory.used_bytes == 0
    assert len(catalogue) == 0
