"""Copies of other servers' portions, found by the dataset's name and by the start that they are of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flight_server.datasets import Catalogue, Dataset, held, own_start
from flight_server.protocol import (
    CreateRequest,
    InvalidRequest,
    Kind,
    NotFound,
    ServerLost,
    StaleTicket,
    Ticket,
    copy_name,
)
from tests.flight_server.datasets.test_dataset import Clock
from tests.support.callers import anyone
from tests.support.catalogues import expired, new_catalogue

OTHER, THIRD = "a" * 16, "b" * 16
FIRST, SECOND = "0" * 16, "1" * 16


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalogue(tmp_path: Path, clock: Clock) -> Iterator[Catalogue]:
    made = new_catalogue(tmp_path, 64 << 20, lease_seconds=100, clock=clock)
    yield made
    made.close()


def create(catalogue: Catalogue, name: str, generation: str = FIRST, lease_seconds: float = 60.0) -> Dataset:
    request = CreateRequest(name, Kind.SHUFFLE, generation=generation, lease_seconds=lease_seconds)
    return catalogue.create(request, None)[0]


def test_a_ticket_for_a_start_leads_to_the_copy_of_its_portion(catalogue: Catalogue) -> None:
    mine, copy = create(catalogue, "d"), create(catalogue, copy_name("d", OTHER))
    for start, found in ((None, mine), (own_start(), mine), (OTHER, copy)):
        assert anyone(catalogue).resolve(Ticket("d", 0, FIRST, start=start)) == (found, 0)
    for start, generation in ((THIRD, FIRST), (OTHER, SECOND)):
        with pytest.raises(ServerLost, match=f"the start '{start}'"):
            anyone(catalogue).resolve(Ticket("d", 0, generation, start=start))


def test_all_that_a_server_has_of_a_dataset_is_of_one_generation(catalogue: Catalogue) -> None:
    first, second = create(catalogue, copy_name("d", OTHER)), create(catalogue, copy_name("d", THIRD), SECOND)
    assert held(catalogue, "d", FIRST) == [first]
    assert held(catalogue, "d", SECOND) == [second]
    mine = create(catalogue, "d", SECOND)
    assert held(catalogue, "d") == [mine, first, second]
    assert held(catalogue, "d", SECOND) == [mine, second]
    with pytest.raises(StaleTicket):
        held(catalogue, "d", "2" * 16)


def test_a_copy_that_was_dropped_or_has_expired_is_found_no_more(catalogue: Catalogue, clock: Clock) -> None:
    names = [copy_name("d", OTHER), copy_name("d", THIRD)]
    for name in names:
        create(catalogue, name)
    catalogue.drop(names[0])
    assert [each.name for each in held(catalogue, "d")] == names[1:]
    clock.now += 61.0
    expired(catalogue)
    with pytest.raises(NotFound):
        held(catalogue, "d")
    assert not catalogue.portion_copies.of("d")


def test_only_a_put_of_an_exchange_makes_a_copy(catalogue: Catalogue) -> None:
    with pytest.raises(InvalidRequest, match="'~' is in the names of copies"):
        catalogue.create(CreateRequest(copy_name("d", OTHER)), None)
