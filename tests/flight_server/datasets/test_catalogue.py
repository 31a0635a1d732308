"""The catalogue: which dataset a name means at each moment, and when a dataset is released."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.frames import SchemaMessage
from flight_server.protocol import CreateRequest, Kind, Retention
from flight_server.protocol.errors import (
    AlreadyExists,
    DatasetDropped,
    InvalidRequest,
)
from tests.flight_server.datasets.test_dataset import SCHEMA
from tests.support.catalogues import expired, new_catalogue
from tests.support.clocks import Clock
from tests.support.frames import frame
from tests.support.queues import take_one


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
