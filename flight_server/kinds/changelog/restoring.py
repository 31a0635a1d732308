"""Recovery: brings back the changelogs of a data directory when a server starts.

Guarantee: each changelog has its last acknowledged version, its holds and its transactions. It runs before the server
listens, under the directory's lock, so it may block. ``journal`` and ``runs.log`` have the formats and the readers'
algorithms.

Damage
    A changelog whose state file, log or runs are proven damaged goes to the quarantine; others are not concerned. A
    torn tail of the last log is cut off: it was never acknowledged. A changelog whose rule this server cannot run goes
    to the quarantine, too. An I/O error proves no damage: nothing is deleted, and the start ends.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pyarrow as pa
import structlog

from flight_server.datasets import Dataset
from flight_server.frames import SchemaMessage
from flight_server.protocol import FlightShuffleError, KeepRule, Kind, OutOfBudget
from flight_server.records import DiskTrouble
from flight_server.storage import (
    Marker,
    NotAFile,
    Quarantined,
    noted_damage,
    put_aside,
    sync_directory,
    sync_file,
)

from .changelog import Changelog
from .changelog_files import CHANGELOGS_NAME, ChangelogFiles, delete_files, delete_forgotten
from .journal import HOLD_FIELDS, StateRecord, bring_back_hold, commits_of, numbered
from .runs import (
    Damaged,
    Layout,
    LogEntry,
    LogFile,
    MemoryRun,
    RunFile,
    Updates,
    of_block,
    read_log,
    read_state,
)
from .store import Store
from .timeline import past_time

JOINED_ROWS = 32 << 10
"""Commits of a log are brought back in runs of up to so many rows."""

_log = structlog.get_logger("flight_server.kinds.changelog.restoring")


def recover_changelogs(store: Store) -> None:
    """Fill an empty store. Raises OSError: the start must end, because of an I/O error."""
    disk = store.catalogue.disk
    assert disk.data_dir is not None
    base = disk.data_dir / CHANGELOGS_NAME
    base.mkdir(exist_ok=True)
    for directory, marker in disk.own_directories(base):
        try:
            try:
                said_state = read_state(directory)
            except FileNotFoundError:
                delete_forgotten(directory)
                continue
            _recover(store, directory, marker, StateRecord.parse(said_state))
        except (DiskTrouble, OutOfBudget) as trouble:
            raise OSError(f"changelog {marker.dataset!r} cannot be recovered: {trouble}") from None
        except (Damaged, NotAFile, FlightShuffleError) as refusal:
            why = f"not served: {refusal}" if isinstance(refusal, FlightShuffleError) else str(refusal)
            said = Quarantined.now(marker.dataset, marker.generation, directory, why)
            disk.disposal.quarantine.append(put_aside(directory, said))
    # Last, because logs may have more than there is memory for until the compactor has written it to files.
    for run in (run for changelog in store for run in changelog.runs if isinstance(run, MemoryRun)):
        run.count()


def _recover(store: Store, directory: Path, marker: Marker, state: StateRecord) -> None:
    catalogue = store.catalogue
    keep = None if state.keep is None else KeepRule.parse(state.keep)
    layout = Layout(_schema(state), keep)
    changelog = store.changelog_of(state, layout, keep, directory)
    damage = noted_damage(directory, marker)
    changelog.runs = tuple(_run(changelog, name, version) for name, version in state.runs)
    for name, version in state.lapsed.items():
        changelog.holds.add_lapsed(name, int(version))
    try:
        for name, stored in state.holds.items():
            bring_back_hold(changelog.holds, name, stored)
    except (TypeError, ValueError) as error:
        raise Damaged(f"a hold in the state file does not have its fields: {error}") from error
    used = {name for name, _ in state.runs}
    _replay(store, changelog, state, used)
    logs = frozenset(log.path.name for _, log in changelog.logs)
    changelog.numbers_from(max(numbered(directory)[1], default=0) + 1)
    delete_files(directory, frozenset(used) | logs)
    dataset = Dataset(
        state.dataset,
        kind=Kind.CHANGELOG,
        schema=catalogue.schemas.recovered(SchemaMessage.of(layout.schema)),
        lease_seconds=state.lease_seconds,
        metadata=catalogue.budget.metadata,
        generation=state.generation,
        clock=catalogue.clock,
    )
    if catalogue.get(state.dataset) is not None:
        raise Damaged(f"another dataset has the name {state.dataset!r}")
    store.add(dataset, changelog, ChangelogFiles.found(directory, marker, damage))
    if damage is not None:
        catalogue.disk.disposal.quarantine.append(damage)
        changelog.damage = damage.reason
        changelog.step("damage")
    catalogue.restore(dataset, 0)
    changelog.wake()
    _log.info("changelog_recovered", dataset=changelog.name, upper=changelog.upper, rows=changelog.rows)


def _schema(state: StateRecord) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(state.schema, validate=True)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(f"the schema in the state file is not one: {error}") from error


def _run(changelog: Changelog, name: str, version: int | None) -> RunFile:
    try:
        return RunFile(changelog.directory / name, changelog.layout, changelog.disk.empty(), version)
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None


def _replay(store: Store, changelog: Changelog, state: StateRecord, used: set[str]) -> None:
    """Bring back what the logs have beyond the covered versions."""
    logs = {
        number: path for number, path in numbered(changelog.directory)[0].items() if number >= state.first_log
    }
    waiting: list[Updates] = []

    def publish() -> None:
        if waiting:
            updates = Updates.joined(changelog.layout, waiting)
            first, last = int(updates.versions.min()), int(updates.versions.max())
            run = MemoryRun(updates, first, last, store.memory.empty())
            changelog.runs += (run,)
            waiting.clear()

    for number, path in logs.items():
        entries, size_bytes, torn = read_log(path)
        if torn and number != max(logs):
            raise Damaged(f"{path.name} ends in the middle of an entry, and another log follows it")
        if torn:
            _cut(path, size_bytes)
        for entry in entries:
            updates, files = _replay_entry(changelog, entry, state.covered)
            if files:
                publish()
                changelog.runs += tuple(files)
                used |= {file.path.name for file in files}
            if updates is not None:
                waiting.append(updates)
            if sum(map(len, waiting)) >= JOINED_ROWS:
                publish()
        log = LogFile(path, changelog.disk.empty(), size_bytes)
        changelog.logs.append((changelog.upper, log))
    publish()
    if not changelog.logs:
        changelog.new_log(state.first_log)


def _replay_entry(
    changelog: Changelog, entry: LogEntry, covered: int
) -> tuple[Updates | None, list[RunFile]]:
    header = entry.header
    try:
        if "hold" in header:
            stored = [header.get(field) for field in HOLD_FIELDS]
            bring_back_hold(changelog.holds, str(header["hold"]), stored)
        changelog.holds.release(map(str, header.get("release", ())))
        names = [str(name) for name in header.get("files", ())]
    except (TypeError, ValueError, KeyError) as error:
        raise Damaged(f"a log entry does not have its fields: {error}") from error
    commits = [commit for commit in commits_of(entry) if commit.version > covered]
    if not commits:
        return None, []
    for commit in commits:
        if commit.version != changelog.upper + 1:
            raise Damaged(f"version {commit.version} follows version {changelog.upper} in the log")
        changelog.upper = commit.version
        changelog.timeline.add(commit.version, past_time(commit.time))
        changelog.transactions.note(commit.transaction, commit.version, commit.time)
    files = [_run(changelog, name, commits[0].version) for name in names]
    return (of_block(changelog.layout, entry.body) if entry.body else None), files


def _cut(path: Path, size_bytes: int) -> None:
    _log.warning("torn_tail_cut", path=str(path), size_bytes=size_bytes)
    os.truncate(path, size_bytes)
    sync_file(path)
    sync_directory(path.parent)
