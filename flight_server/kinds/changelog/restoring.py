"""Restoring: brings back the changelogs of a data directory when a server starts.

Guarantee: each changelog has its last acknowledged version, its holds and its transactions. It runs before the server
listens, under the directory's lock, so it may block. Rows of small puts that no file has are joined to runs in memory.

Damage
    A changelog whose rows are damaged, or one of whose files is missing or proven damaged, goes to the quarantine;
    others are not concerned. One whose rule this server cannot run goes there, too. One whose damage was found while it
    was served is served again, in the same state. An I/O error proves no damage: nothing is deleted, and the start
    ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest

import structlog

from flight_server.datasets import Dataset, Transactions
from flight_server.frames import SchemaMessage
from flight_server.protocol import FlightShuffleError, Kind, OutOfBudget
from flight_server.records import (
    DiskTrouble,
    Quarantined,
    StoredChangelog,
    StoredRange,
    StoredVersions,
    changelogs,
)
from flight_server.storage import NotAFile
from flight_server.tiering import set_aside

from .changelog import Changelog
from .contents import Bases, Contents, Range
from .runs import MAX_HASH, Damaged, Layout, MemoryRun, RunFile, Updates, of_block
from .store import Store
from .timeline import Timeline, past_time

JOINED_ROWS = 32 << 10
"""Versions are brought back in runs of up to so many rows."""

_log = structlog.get_logger("flight_server.kinds.changelog.restoring")


def recover_changelogs(store: Store) -> None:
    """Fill an empty store. Raises OSError: the start must end: an I/O error, or no room for the metadata;
    records.DamagedDatabase.
    """
    if store.catalogue.disk.records is None:
        return
    try:
        store.catalogue.records.read(partial(_recover, store))
    except DiskTrouble as trouble:
        raise OSError(str(trouble)) from trouble
    # Last, because the rows may take more than there is memory for until the compactor has written them to files.
    for run in (
        run for changelog in store for run in changelog.contents.recent if isinstance(run, MemoryRun)
    ):
        run.count()


def _recover(store: Store, connection: sqlite3.Connection) -> None:
    damaged: list[tuple[int, Quarantined]] = []
    for stored in changelogs(connection):
        if not isinstance(stored, StoredChangelog):
            damaged.append(stored)
            continue
        declared = stored.declared
        try:
            _add(store, _restored(store, stored))
        except OutOfBudget as full:
            raise OSError(f"changelog {declared.dataset!r} cannot be recovered: {full.message}") from None
        except (Damaged, NotAFile, FlightShuffleError) as refusal:
            why = f"not served: {refusal}" if isinstance(refusal, FlightShuffleError) else str(refusal)
            files = [name for name, _ in stored.runs]
            entry = Quarantined.now(declared.dataset, declared.generation, why, files)
            damaged.append((stored.row, entry))
    set_aside(store.catalogue, connection, damaged)


def _add(store: Store, changelog: Changelog) -> None:
    catalogue, declared = store.catalogue, changelog.declared
    dataset = Dataset(
        declared.dataset,
        kind=Kind.CHANGELOG,
        schema=catalogue.schemas.recovered(SchemaMessage(declared.schema)),
        lease_seconds=declared.lease_seconds,
        metadata=catalogue.budget.metadata,
        generation=declared.generation,
        clock=catalogue.clock,
    )
    store.add(dataset, changelog)
    for entry in catalogue.disk.quarantine.entries:
        if entry.key == (declared.dataset, declared.generation):
            assert dataset.on_disk is not None
            dataset.on_disk.damaged = True
            changelog.damage = entry.reason
            changelog.step("damage")
    catalogue.restore(dataset)
    changelog.wake()
    _log.info("changelog_recovered", dataset=changelog.name, upper=changelog.upper, rows=changelog.rows)


def _restored(store: Store, stored: StoredChangelog) -> Changelog:
    changelog = store.changelog_of(stored.declared)
    files = [_file(changelog, name, version) for name, version in stored.runs]
    changelog.records.restore(stored, files)
    changelog.since, changelog.upper = stored.since, stored.upper
    changelog.timeline = _timeline(stored)
    changelog.transactions = Transactions(
        changelog.name, store.catalogue.budget.metadata, stored.transactions, stored.forgotten
    )
    for hold in stored.holds:
        changelog.holds.restore(hold)
    changelog.contents = _contents(changelog.layout, stored.ranges, files).committed(
        list(_in_memory(store, changelog.layout, stored.versions))
    )
    return changelog


def _file(changelog: Changelog, name: str, version: int | None) -> RunFile:
    try:
        return RunFile.opened(changelog.folder, name, changelog.layout, version)
    except (FileNotFoundError, ValueError):  # a name that can be no file's
        raise Damaged(f"{name!r} is missing") from None


def _contents(layout: Layout, ranges: list[StoredRange], files: list[RunFile]) -> Contents:
    if not ranges:
        return Contents.empty(layout).committed(files)
    if ranges[0].low != 0:
        raise Damaged("its first range does not begin with the first hash")
    runs = {file.name: file for file in files}
    restored = []
    for each, following in zip_longest(ranges, ranges[1:]):
        high = MAX_HASH if following is None else following.low - 1
        if each.base is None:
            restored.append(Range(each.low, high, each.since))
        elif each.base in runs:
            restored.append(Range.of(each.low, high, each.since, runs[each.base]))
        else:
            raise Damaged(f"{each.base} is the base of a range, and no row of table 'run' has it")
    bases = Bases(layout, tuple(restored))
    return Contents(bases, tuple(file for file in files if file not in bases.runs))


def _in_memory(store: Store, layout: Layout, versions: list[StoredVersions]) -> Iterator[MemoryRun]:
    """The versions that no file has."""
    waiting: list[Updates] = []
    for number, stored in enumerate(versions, 1):
        waiting.append(of_block(layout, stored.block))
        if sum(map(len, waiting)) >= JOINED_ROWS or number == len(versions):
            updates = Updates.joined(layout, waiting)
            first, last = int(updates.versions.min()), int(updates.versions.max())
            yield MemoryRun(updates, first, last, store.memory.empty())
            waiting.clear()


def _timeline(stored: StoredChangelog) -> Timeline:
    times = [(each.last, past_time(each.time)) for each in stored.versions]
    times.append((stored.upper, past_time(stored.time)))
    timeline = Timeline(stored.declared.delay_seconds, *times[0])
    for version, committed in times[1:]:
        timeline.add(version, committed)
    return timeline
