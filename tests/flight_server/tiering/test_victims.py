"""Which messages leave RAM, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from flight_server.concurrency import at_once
from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.protocol import CreateRequest
from flight_server.tiering.spiller import Groups, picking
from tests.support.catalogues import new_catalogue
from tests.support.frames import frame, spill


def pick(datasets: Sequence[Dataset], size_bytes: int) -> Groups:
    """All steps in one."""
    return at_once(picking(datasets, size_bytes))


def filled(catalogue: Catalogue, name: str, *sizes: int) -> Dataset:
    """A dataset of one partition with frames of these sizes."""
    dataset, _ = catalogue.create(CreateRequest(name), None)
    for size in sizes:
        dataset.partition(0).publish(frame(size, pool=catalogue.budget.frames))
    return dataset


def test_the_oldest_dataset_is_spilled_first_and_only_as_much_as_is_wanted(catalogue: Catalogue) -> None:
    old, new = filled(catalogue, "old", 10, 10), filled(catalogue, "new", 10, 10)
    frames = list(old.partition(0).frames())
    ((writer, picked),) = pick(catalogue.alive(), 15)
    assert writer is old.writer
    assert picked == frames
    groups = pick(catalogue.alive(), 25)
    assert [writer for writer, _ in groups] == [old.writer, new.writer]
    assert sum(len(picked) for _, picked in groups) == 3
    assert sum(len(picked) for _, picked in pick(catalogue.alive(), 1 << 30)) == 4
    for each in frames:
        spill(each)
    assert [writer for writer, _ in pick(catalogue.alive(), 10)] == [new.writer]


def test_what_a_reader_is_near_is_spilled_last(catalogue: Catalogue) -> None:
    read, idle = filled(catalogue, "read", *[10] * 5), filled(catalogue, "idle", 10)
    with closing(read.partition(0).subscribe()):
        groups = pick(catalogue.alive(), 40)
        assert [writer for writer, _ in groups] == [read.writer, idle.writer]
        near = list(read.partition(0).frames())[:2]
        assert not set(near) & set(groups[0][1])


def test_a_dataset_that_no_name_leads_to_is_spilled_too(catalogue: Catalogue) -> None:
    overwrite = catalogue.prepare(CreateRequest("d"), None)
    overwrite.partition(0).publish(frame(10))
    assert [writer for writer, _ in pick(catalogue.alive(), 10)] == [overwrite.writer]


def test_without_a_directory_nothing_is_spilled() -> None:
    catalogue = new_catalogue(None, 64 << 20)
    filled(catalogue, "d", 10)
    assert pick(catalogue.alive(), 10) == []
    catalogue.close()
