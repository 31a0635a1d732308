"""Staged writes in the catalogue: who finds them, when a name leads to them, and how those that are left end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.protocol import MAX_PARTITIONS, WRITE_LEASE_SECONDS, CreateRequest, Kind, WriteMode
from flight_server.protocol.errors import Conflict, NotFound, OutOfBudget
from tests.support.catalogues import expired, new_catalogue
from tests.support.clocks import Clock


@pytest.fixture
def catalogue(tmp_path: Path, clock: Clock) -> Iterator[Catalogue]:
    catalogue = new_catalogue(tmp_path, 64 << 20, lease_seconds=9000, max_datasets=3, clock=clock)
    yield catalogue
    catalogue.close()
    assert catalogue.staged.all() == []


def stage(catalogue: Catalogue, name: str, write: str, mode: WriteMode = WriteMode.OVERWRITE) -> Dataset:
    return catalogue.stage(CreateRequest(name, Kind.SHUFFLE, mode=mode, write=write), None)[0]


def test_the_same_write_gets_the_same_dataset_and_another_one_another(catalogue: Catalogue) -> None:
    first = stage(catalogue, "d", "w")
    assert stage(catalogue, "d", "w") is first
    assert stage(catalogue, "d", "v") is not first
    assert stage(catalogue, "e", "w").name == "e", "a write of another name is another one"


def test_one_that_is_left_ends_with_the_lease_of_what_it_is_for_and_after_an_hour_at_the_latest(
    catalogue: Catalogue, clock: Clock
) -> None:
    request = CreateRequest("s", Kind.SHUFFLE, mode=WriteMode.OVERWRITE, write="short", lease_seconds=60)
    short = catalogue.stage(request, None)[0]
    left, sealed = stage(catalogue, "d", "w"), stage(catalogue, "e", "v")
    sealed.close()
    catalogue.take_name(sealed)
    clock.now += 59
    assert expired(catalogue) == []
    clock.now += 1
    assert expired(catalogue) == [short]
    clock.now += WRITE_LEASE_SECONDS - 60
    assert expired(catalogue) == [left]
    assert left.dropped
    assert catalogue.find("e") is sealed, "with the name it has got the lease that it was created with"
    clock.now += 9000
    assert expired(catalogue) == [sealed]


def test_a_put_that_overwrites_is_not_ended_by_the_lease_that_its_dataset_will_have(
    catalogue: Catalogue, clock: Clock
) -> None:
    put = catalogue.prepare(CreateRequest("d", lease_seconds=60), None)
    catalogue.staged.add(None, put, WriteMode.OVERWRITE)
    clock.now += WRITE_LEASE_SECONDS - 1
    assert expired(catalogue) == []
    put.close()
    catalogue.take_name(put)
    assert put.lease_seconds == 60


def test_a_write_that_has_ended_is_not_begun_again_by_a_late_task(catalogue: Catalogue, clock: Clock) -> None:
    catalogue.drop("d", stage(catalogue, "d", "dropped").generation)
    sealed = stage(catalogue, "d", "sealed")
    sealed.close()
    catalogue.take_name(sealed)
    for write in ("dropped", "sealed"):
        with pytest.raises(Conflict, match="has ended"):
            stage(catalogue, "d", write)
    first = stage(catalogue, "d", "slow")
    clock.now += WRITE_LEASE_SECONDS
    expired(catalogue)
    assert stage(catalogue, "d", "slow") is not first, (
        "a job may take longer than the lease before its first row"
    )


def test_staged_datasets_count_among_the_datasets(catalogue: Catalogue) -> None:
    catalogue.create(CreateRequest("d"), None)
    stage(catalogue, "d", "w")
    stage(catalogue, "d", "v")
    with pytest.raises(OutOfBudget, match="this server has as many as --max-datasets allows"):
        stage(catalogue, "d", "u")


async def test_an_abort_drops_what_is_staged_and_not_what_has_the_name(catalogue: Catalogue) -> None:
    staged = stage(catalogue, "d", "w")
    staged.close()
    catalogue.take_name(staged)
    with pytest.raises(NotFound, match="is not staged: it was sealed"):
        await catalogue.remove("d", staged.generation, staged=True)
    assert catalogue.find("d") is staged
    assert not staged.dropped
    late = stage(catalogue, "d", "v")
    assert await catalogue.remove("d", late.generation, staged=True) is late
    assert late.dropped


def test_nothing_durable_is_appended_to_what_is_not(catalogue: Catalogue) -> None:
    catalogue.create(CreateRequest("d"), None)[0].close()
    request = CreateRequest("d", Kind.SHUFFLE, durable=True, mode=WriteMode.APPEND, write="w")
    with pytest.raises(Conflict, match="'d' is not durable, so what is appended would not be"):
        catalogue.stage(request, None)


def test_a_dataset_with_as_many_partitions_as_there_can_be_is_refused_before_the_rows_come(
    catalogue: Catalogue,
) -> None:
    catalogue.create(CreateRequest("d", Kind.SHUFFLE, partitions=MAX_PARTITIONS), None)[0].close()
    with pytest.raises(Conflict, match="has 100000 partitions, as many as it can have"):
        stage(catalogue, "d", "w", WriteMode.APPEND)
