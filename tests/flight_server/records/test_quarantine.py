"""The entries of damaged datasets, in memory and in the records."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest

from flight_server.protocol import DataQuarantined
from flight_server.records import Database, DiskTrouble, Quarantine, Quarantined, put_quarantined

ENTRY = Quarantined.now("d", "g1", "a bit has flipped", ["a.frames", "b.frames"])


class Refusal:
    """What a disk does before each commit."""

    def __init__(self) -> None:
        self.refuses = False

    def __call__(self) -> None:
        if self.refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


async def added(database: Database | None, quarantine: Quarantine, *entries: Quarantined) -> None:
    """As a start does with damaged datasets."""
    if database is not None:
        await database.commit(lambda connection: put_quarantined(connection, entries))
    quarantine.listed(*entries)


@pytest.mark.parametrize("lasting", [True, False])
async def test_an_entry_is_named_until_it_is_dropped(base: Path, lasting: bool) -> None:
    database = Database(base) if lasting else None
    quarantine = Quarantine(database)
    quarantine.check("d")
    await added(database, quarantine, ENTRY, Quarantined.now("e", "g", "it is missing"))
    again = Quarantine(database) if lasting else quarantine
    assert again.entries == quarantine.entries
    with pytest.raises(DataQuarantined, match=r"a bit has flipped.*drop it, which deletes them") as caught:
        again.check("d")
    assert caught.value.detail["files"] == "a.frames, b.frames"
    assert await quarantine.drop("d") == ["a.frames", "b.frames"]
    assert await quarantine.drop("d") == []
    quarantine.check("d")
    assert [entry.dataset for entry in quarantine.entries] == ["e"]
    if database is not None:
        assert Quarantine(database).entries == quarantine.entries
        database.close()


async def test_an_entry_of_the_same_generation_is_replaced_and_another_stands_beside(base: Path) -> None:
    with closing(Database(base)) as database:
        quarantine = Quarantine(database)
        served = Quarantined("d", "g1", "partition 3", ENTRY.when, ("a.frames",), served=True)
        other = Quarantined("d", "g2", "it is missing", ENTRY.when)
        await added(database, quarantine, served)
        await added(database, quarantine, ENTRY, other)
        assert quarantine.entries == [ENTRY, other]
        assert Quarantine(database).entries == [ENTRY, other]


async def test_what_the_disk_refuses_changes_nothing(base: Path) -> None:
    refusal = Refusal()
    with closing(Database(base, refusal)) as database:
        quarantine = Quarantine(database)
        await added(database, quarantine, ENTRY)
        refusal.refuses = True
        with pytest.raises(DiskTrouble):
            await quarantine.drop("d")
        assert quarantine.entries == [ENTRY]
        refusal.refuses = False
        assert Quarantine(database).entries == [ENTRY]


async def test_damage_that_is_noted_is_listed_at_once_and_once_and_committed_when_the_disk_takes_it(
    base: Path,
) -> None:
    refusal = Refusal()
    with closing(Database(base, refusal)) as database:
        quarantine = Quarantine(database)
        refusal.refuses = True
        quarantine.note(ENTRY)
        quarantine.note(Quarantined.now("d", "g1", "another bit"))
        assert quarantine.entries == [ENTRY]
        assert Quarantine(database).entries == []
        refusal.refuses = False
        await database.commit(lambda _: None)  # comes later
        assert Quarantine(database).entries == [ENTRY]
