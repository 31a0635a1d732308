"""Seals of staged writes: what a transaction remembers, and what a repeated seal does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.protocol import Commit, CreateRequest, Kind, SealRequest, Transaction, WriteMode
from flight_server.protocol.errors import Conflict, NotFound
from flight_server.transfer import seals
from tests.support.catalogues import new_catalogue
from tests.support.frames import frame


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    catalogue = new_catalogue(tmp_path, 64 << 20)
    yield catalogue
    catalogue.close()
    assert catalogue.budget.memory.used_bytes == 0


def staged(catalogue: Catalogue, write: str, mode: WriteMode = WriteMode.APPEND) -> Dataset:
    """A staged write of one frame, for partition 1 of 3."""
    request = CreateRequest("d", Kind.SHUFFLE, partitions=3, mode=mode, write=write)
    dataset = catalogue.stage(request, None)[0]
    attempt = dataset.begin_attempt(0, "a")
    attempt.publish(1, frame(100, pool=catalogue.budget.frames))
    dataset.commit(attempt, Commit(attempt.rows, 1))
    return dataset


async def seal(catalogue: Catalogue, dataset: Dataset, transaction: Transaction | None = None) -> Dataset:
    durability: Any = SimpleNamespace(catalogue=catalogue)  # not durable, so nothing of it is needed but this
    request = SealRequest("d", dataset.generation, {0: "a"}, None, transaction)
    return await seals.seal(durability, dataset, request)


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


async def test_a_seal_that_is_repeated_is_harmless_where_it_has_the_name(catalogue: Catalogue) -> None:
    dataset = staged(catalogue, "w", WriteMode.OVERWRITE)
    assert await seal(catalogue, dataset) is await seal(catalogue, dataset) is dataset
    assert catalogue.find("d") is dataset


async def test_the_transaction_that_was_used_least_recently_is_forgotten(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seals, "MAX_TRANSACTIONS", 2)
    for time, (name, version) in enumerate([("a", 0), ("b", 0), ("a", 1), ("c", 0)]):
        await seal(catalogue, staged(catalogue, f"w{time}"), Transaction(name, version))
    assert catalogue.find("d").transactions == {"a": 1, "c": 0}


async def test_a_version_whose_predecessor_is_not_there_is_refused_and_stays_staged(
    catalogue: Catalogue,
) -> None:
    for version, after in ((0, None), (1, 0)):
        await seal(catalogue, staged(catalogue, f"w{version}"), Transaction("q", version, after))
    late = staged(catalogue, "w3")
    with pytest.raises(Conflict, match="it has them up to version 1"):
        await seal(catalogue, late, Transaction("q", 3, 2))
    assert catalogue.find("d").partition_count == 4
    assert catalogue.find("d", late.generation) is late
