"""Why a dataset is gone, in the errors of all calls that come too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flight_server.datasets import Catalogue, Dataset, dropped_by
from flight_server.datasets.partition import PartitionState
from flight_server.protocol import (
    Commit,
    Conflict,
    CreateRequest,
    DatasetDropped,
    FlightShuffleError,
    Kind,
    NotFound,
    ProducerFailed,
    Retention,
    StaleTicket,
    WriteMode,
)
from tests.support.accepting import accept
from tests.support.catalogues import expired, new_catalogue
from tests.support.clocks import Clock

SECONDS = 10.0
LEASE = r"ended with its lease of 10 s at 2\d{3}-.* UTC \(to keep one, create it with a longer lease_seconds, or read"


@pytest.fixture
def catalogue(clock: Clock) -> Iterator[Catalogue]:
    made = new_catalogue(None, 1 << 20, clock=clock)
    yield made
    made.close()


def created(catalogue: Catalogue, kind: Kind = Kind.SHUFFLE) -> Dataset:
    retention = Retention(seconds=SECONDS) if kind is Kind.STREAM else Retention()
    request = CreateRequest(
        "d", kind, lease_seconds=SECONDS if kind is Kind.SHUFFLE else None, retention=retention
    )
    dataset, _ = catalogue.create(request, None)
    return dataset


def lease_ends(catalogue: Catalogue, clock: Clock) -> None:
    clock.now += SECONDS
    assert len(expired(catalogue)) == 1


def is_dropped(catalogue: Catalogue, _: Clock) -> None:
    catalogue.drop("d", why=dropped_by("ipv4:10.0.0.7:4242"))


def refused(error: type[FlightShuffleError], why: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=rf"'d'.* {why}"):
        call()


@pytest.mark.parametrize(
    ("end", "why"), [(lease_ends, LEASE), (is_dropped, r"was dropped by the client ipv4:10.0.0.7:4242 at 2")]
)
def test_each_late_call_says_why_the_dataset_is_gone(
    catalogue: Catalogue, clock: Clock, end: Callable[[Catalogue, Clock], None], why: str
) -> None:
    dataset = created(catalogue)
    attempt, partition = dataset.begin_attempt(0, "a"), dataset.partition(0)
    end(catalogue, clock)
    refused(
        Conflict,
        why + ".*: producer 0 attempt a comes too late",
        lambda: dataset.commit(attempt, Commit(0, 0)),
    )
    refused(Conflict, why + ".*stop this task", lambda: attempt.commit(Commit(0, 0)))
    refused(Conflict, why, lambda: accept(dataset, {0: "a"}))
    refused(DatasetDropped, why + ".* while partition 0 was in use", partition.check)
    refused(Conflict, why + ".*: it cannot seal now", partition.seal)
    for generation in (None, dataset.generation):
        refused(NotFound, f"it {why}", lambda: catalogue.find("d", generation))  # noqa: B023  # called at once
    created(catalogue)
    refused(StaleTicket, f"which {why}", lambda: catalogue.find("d", dataset.generation))


def test_the_end_of_a_retention_is_not_called_a_drop(catalogue: Catalogue, clock: Clock) -> None:
    dataset = created(catalogue, Kind.STREAM)
    dataset.end_stream(dataset.begin_stream(0))
    lease_ends(catalogue, clock)
    assert dataset.partition(0).state is PartitionState.SEALED
    refused(NotFound, r"it ended with its retention of 10 s at 2", lambda: catalogue.find("d"))


def test_a_failed_dataset_that_is_taken_away_is_gone_because_it_failed(
    catalogue: Catalogue, clock: Clock
) -> None:
    dataset = created(catalogue)
    dataset.partition(0).fail(ProducerFailed("its producer broke off"))
    lease_ends(catalogue, clock)
    refused(NotFound, r"because its write had failed \(its producer broke off\)", lambda: catalogue.find("d"))


def test_a_staged_write_that_is_given_up_does_not_hide_why_the_dataset_of_its_name_is_gone(
    catalogue: Catalogue, clock: Clock
) -> None:
    created(catalogue)
    lease_ends(catalogue, clock)
    staged, _ = catalogue.stage(CreateRequest("d", Kind.SHUFFLE, mode=WriteMode.NEW, write="w"), None)
    catalogue.drop("d", staged.generation, dropped_by("a client"))
    with pytest.raises(NotFound, match=LEASE):
        catalogue.find("d")
    with pytest.raises(NotFound, match="it was dropped by the client a client"):
        catalogue.find("d", staged.generation)
