"""ChangelogKind: the changelogs of one server: creates, recovers and finds them, and has their shared parts.

A changelog is a dataset of kind ``changelog``: the catalogue has its name, lease and drop, and the dataset holds the
changelog. Its row is in the records before ``create`` returns. A server without a lasting data directory keeps no
records of it; its run files are in the temporary one.

Recovery
    Recovery comes before the server listens, under the directory's lock, so it may block. ``restoring`` says what each
    changelog has then.

    A changelog whose rows are damaged, or one of whose files is missing or proven damaged, goes to the quarantine;
    others are not concerned. One whose rule this server cannot run goes there, too. One whose damage was found while it
    was served is served again, in the same state. An I/O error proves no damage: nothing is deleted, and the start
    ends.
"""

from __future__ import annotations

import base64
import sqlite3
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import structlog

from flight_server.access import ANYONE, Permission
from flight_server.concurrency import Background, Waits, in_slices, in_thread
from flight_server.datasets import Append, Caller, Catalogue, Dataset, OnDisk
from flight_server.frames import SchemaMessage
from flight_server.kinds import Action, DatasetKind
from flight_server.memory import MemoryPool
from flight_server.protocol import (
    HOLD,
    CreateRequest,
    FlightShuffleError,
    HoldRequest,
    InvalidRequest,
    KeepRule,
    Kind,
    OutOfBudget,
    PutCommand,
    Unavailable,
    Versions,
)
from flight_server.records import (
    ChangelogRecords,
    DeclaredChangelog,
    DiskTrouble,
    NoDatabase,
    Quarantined,
    RecordGone,
    StoredChangelog,
    changelogs,
)
from flight_server.storage import FileHeader, NotAFile
from flight_server.tiering import Admission, set_aside

from .changelog import (
    DEFAULT_DELAY_SECONDS,
    KEPT_DISK_PARTS,
    AttachedChangelog,
    Changelog,
    ChangelogState,
)
from .commits import Commits
from .compactor import DUTIES, Compactor
from .emitting import Emitter
from .holds import MAX_LAPSED
from .reads import ChangelogRead, ChangelogReads
from .restoring import restore
from .rules import make_rule
from .runs import Damaged, Layout, MemoryRun, RunFolder
from .timeline import wall_time
from .writes import ChangelogSink, ChangelogWrite, VersionAppends

MEMORY_SHARE = 16
"""Runs in memory have one part in so many of the memory limit, within the account ``metadata``."""

CHANGELOG_BYTES = 4096
"""An idle changelog beside its dataset: the object, its state, its rule and its records."""
METRICS = {
    "changelogs_damaged": "changelogs that were found damaged on disk",
    "changelogs_not_emitting": "changelogs whose rule's pairs go nowhere, or wait until their target takes rows",
    "changelog_rows": "updates in the runs of all changelogs",
    "changelog_tombstones": "deletes in those runs",
    "changelog_waiting_retractions": "retractions that folds have left, because their rows may still come",
    "changelog_transaction_ids": "ids of transactions that are remembered",
    "changelog_ranges": "ranges of keys' hashes of all changelogs",
    "changelog_runs": "runs of all changelogs",
    "changelog_memory_bytes": "bytes of runs in RAM",
    "changelog_disk_bytes": "bytes of run files, and of rows that no file has",
    "changelog_debt_rows": "updates that are left to fold",
    "changelog_garbage_rows": "rows of which a fold may leave nothing; holds may keep them",
    "changelog_holds": "holds on versions",
    "changelog_followers": "open streams of deltas",
    "changelogs_held_back": "changelogs whose compaction waits for a hold; statistics and the log name it",
    "changelogs_held_back_max_seconds": "how long the version of such a hold has been out of date, at most",
    "changelog_versions": "versions committed to the changelogs that there are",
}
_NAMES = {"memory_bytes": "bytes", "holds": "hold_count", "versions": "upper"}
"""Those that statistics name in another way."""
CHANGELOGS_AT_ONCE = 10
"""Changelogs between two passes of the event loop: one of 30 runs takes 0.04 ms, one of the most runs 0.3 ms."""

_log = structlog.get_logger("flight_server.kinds.changelog.store")


class ChangelogKind(DatasetKind):
    """The changelogs and their threads.

    Args:
        admission: of the rows of staged writes that are appended; None takes no appends.
        deadline_seconds: how long a commit waits for memory.
        max_lag_seconds: how long a hold may keep a version that is out of date.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        background: Background,
        waits: Waits,
        *,
        admission: Admission | None = None,
        deadline_seconds: float,
        max_lag_seconds: float,
        max_message_bytes: int,
    ) -> None:
        budget = catalogue.budget
        assert budget.metadata.pool.limit_bytes is not None
        assert budget.memory.limit_bytes is not None
        super().__init__(catalogue)
        self.max_lag_seconds = max_lag_seconds
        self.memory: MemoryPool = budget.metadata.pool.part(
            "changelogs", max(1, budget.memory.limit_bytes // MEMORY_SHARE)
        )
        self.threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="flight-server-commit")
        self._reading = ThreadPoolExecutor(max_workers=2, thread_name_prefix="flight-server-read")
        self.compactor = Compactor(self.memory)
        self.commits = Commits(
            background, waits, self.memory, self.threads, deadline_seconds=deadline_seconds, short=self.short
        )
        self.reads = ChangelogReads(
            budget,
            waits,
            self._reading,
            max_message_bytes=max_message_bytes,
        )
        self._changelogs: dict[str, Changelog] = {}  # by generation
        self._emitters: dict[str, Emitter] = {}  # by the generation of their source
        self._background = background
        # The same two objects for all changelogs.
        self._hooks: dict[str, Any] = {"wake": self._wake, "found_damage": self._note_damage}
        self._append: Append | None = None
        if admission is not None:
            appends = VersionAppends(
                catalogue, self.write, admission, background, max_message_bytes=max_message_bytes
            )
            self._append = appends.append

    def __iter__(self) -> Iterator[Changelog]:
        return iter(list(self._changelogs.values()))

    # What changelogs call

    def _wake(self, changelog: Changelog, *, soon: bool = False) -> None:
        self.compactor.poke(changelog, soon=soon)
        emitter = self._emitters.get(changelog.generation)
        if emitter is not None and changelog.state is not ChangelogState.CLOSED:
            emitter.wake()

    def _note_damage(self, changelog: Changelog, what: str) -> None:
        dataset = self.catalogue.get(changelog.name)
        # A reader of a changelog that was dropped finds damage, too; the name may lead to another one then.
        if dataset is not None and changelog is _attached_to(dataset):
            files = [run.name for run in changelog.contents.files]
            entry = Quarantined.now(changelog.name, changelog.generation, what, files, served=True)
            self.catalogue.disk.quarantine.note(entry)
            if dataset.on_disk is not None:
                dataset.on_disk.damaged = True

    def short(self) -> None:
        """Memory is short: let the changelog with the most of it move its runs to disk, and end the reads of those that
        were dropped.
        """
        for changelog in self:
            if changelog.state is ChangelogState.CLOSED:
                changelog.empty()
        held = [
            each
            for each in self
            if each.state is ChangelogState.OPEN and not any(going.in_memory for going in each.working)
        ]
        if held:
            self.compactor.poke(max(held, key=lambda changelog: changelog.memory_bytes))

    # The contract of a kind

    @property
    def actions(self) -> Mapping[str, Action]:
        return {HOLD: self._hold}

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> ChangelogSink:
        assert dataset is not None
        if command.generation is not None:
            self.catalogue.find(command.dataset, command.generation)
        return ChangelogSink(self.write, command, dataset, schema.schema)

    def read(self, dataset: Dataset, versions: Versions | None, until: int | None) -> ChangelogRead:
        if until is not None:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is a changelog: its readers say 'as_of' or 'after', not 'until'",
                dataset=dataset.name,
            )
        return ChangelogRead(self.reads, self.of(dataset), versions or Versions())

    async def _hold(self, body: bytes, caller: Caller) -> dict[str, object]:
        """The action ``hold``. Raises as :meth:`hold`; InvalidRequest: the body, or the dataset is no changelog."""
        request = HoldRequest.parse(body)
        dataset = caller.find(request.dataset, request.generation)
        if dataset.kind is not Kind.CHANGELOG:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is of kind {dataset.kind.value!r}: only versions of a changelog are held",
                dataset=dataset.name,
            )
        dataset.touch()
        return await self.hold(dataset, request, caller)

    async def metrics(self) -> list[tuple[str, str, float]]:
        """Totals, which are added up in slices, so that the loop serves the streams meanwhile."""
        totals = dict.fromkeys(METRICS, 0.0)
        changelogs = [self.of(dataset) for dataset in self.catalogue if dataset.kind is Kind.CHANGELOG]
        async for changelog in in_slices(changelogs, CHANGELOGS_AT_ONCE):
            numbers = changelog.statistics()
            held = numbers["held_back"]
            for name in METRICS:
                kind, _, what = name.partition("_")
                if what == "held_back_max_seconds":
                    totals[name] = max(totals[name], 0 if held is None else held["seconds"])
                elif kind == "changelogs":
                    totals[name] += numbers.get("damage" if what == "damaged" else what) is not None
                else:
                    totals[name] += numbers[_NAMES.get(what, what)]
        return [(name, text, totals[name]) for name, text in METRICS.items()]

    def recover(self) -> None:
        """Fill an empty store. Raises OSError: the start must end: an I/O error, or no room for the metadata;
        records.DamagedDatabase.
        """
        if self.catalogue.disk.records is None:
            return
        try:
            self.catalogue.records.read(partial(_recover, self))
        except DiskTrouble as trouble:
            raise OSError(str(trouble)) from trouble
        # Last, because the rows may take more than there is memory for until the compactor has written them to files.
        for run in (
            run for changelog in self for run in changelog.contents.runs if isinstance(run, MemoryRun)
        ):
            run.count()

    async def start(self, background: Background, every_seconds: float) -> None:
        await self.emit_again()
        for number in range(DUTIES):
            background.keep(self.compactor.run, f"compactor {number}")
        background.keep(self._expire_holds, "holds", every_seconds=every_seconds)

    async def _expire_holds(self) -> None:
        self.expire_holds()

    # Finding and making

    def of(self, dataset: Dataset) -> Changelog:
        """The changelog of a dataset of that kind; a closed one after a drop."""
        changelog = _attached_to(dataset)
        assert changelog is not None
        return changelog

    async def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """The dataset of that name, and whether it was made now. Twice is fine.

        Raises:
            AlreadyExists, InvalidRequest: the name leads to a different dataset, also if that was made meanwhile.
            InvalidRequest: the rule does not fit the schema, or a column cannot be kept; or, as AlreadyExists, the name
                that its rule emits to leads to something else.
            Unavailable: the disk refuses.
            Draining, OutOfBudget: see :meth:`Catalogue.create`.
        """
        assert schema is not None
        stored = SchemaMessage.of(Layout(schema.schema, request.keep).schema)
        delay = DEFAULT_DELAY_SECONDS if request.delay_seconds is None else request.delay_seconds
        request = replace(request, delay_seconds=delay)
        async with self.catalogue.disk.turn(request.dataset):
            known = self.catalogue.get(request.dataset)
            if known is not None and known.failure is None:
                dataset, _ = self.catalogue.create(request, stored)
            else:
                known, dataset = None, await self._made(request, stored)
        changelog = self.of(dataset)
        await self._emit_from(changelog, make=True)
        return dataset, known is None

    async def _made(self, request: CreateRequest, stored: SchemaMessage) -> Dataset:
        """A new changelog, which has the name. In the name's turn. Cancelled, it has the name or is not on disk."""
        dataset = self.catalogue.prepare(request, stored, lasting=True)
        assert request.delay_seconds is not None
        declared = DeclaredChangelog(
            request.dataset,
            dataset.generation,
            stored.header,
            None if request.keep is None else request.keep.to_json(),
            request.delay_seconds,
            request.lease_seconds,
        )
        # In a thread: a rule's first use may import libraries.
        changelog = await in_thread(self.threads, self.changelog_of, declared)
        self._check_emitted(changelog)

        def take_name() -> None:
            # Datasets that are not durable take names without the turn.
            meanwhile = self.catalogue.get(request.dataset)
            if meanwhile is not None and meanwhile.failure is None:
                meanwhile.check_same(request, stored)
            self.add(dataset, changelog)
            self.catalogue.install(dataset)

        try:
            await changelog.records.create(declared, wall_time(changelog.timeline.last), take_name)
        except DiskTrouble as trouble:
            raise Unavailable(
                f"dataset {request.dataset!r} cannot be created: {trouble}; try again when the disk works",
                dataset=request.dataset,
            ) from None
        return dataset

    async def _emit_from(self, changelog: Changelog, *, make: bool) -> None:
        """Begin to emit its rule's pairs, if it does not yet, to the changelog that there is or that this makes. Raises
        as :meth:`create`; NotFound.
        """
        if changelog.rule.emitted_schema is None or self._is_emitting(changelog):
            return
        # Pairs are kept for the emitter until there is one, also if the target cannot be made now.
        changelog.holds.follow(changelog.generation, changelog.since, lasting=True)
        request, schema = _emitted(changelog)
        try:
            if make:
                target, _ = await self.create(request, schema)
            else:
                target = self.catalogue.find(request.dataset)
                target.check_same(request, schema)
        except FlightShuffleError as trouble:
            changelog.not_emitting = f"{trouble.message}; then create {changelog.name!r} again"
            _log.error("not_emitting", dataset=changelog.name, trouble=trouble.message)
            if not isinstance(trouble, (Unavailable, OutOfBudget)):
                changelog.holds.leave(changelog.generation)
            raise
        if not self._is_emitting(changelog):  # by another call
            self._emitters[changelog.generation] = Emitter(
                changelog, self.of(target), self.commits, self._background, self._reading
            )
        changelog.holds.leave(changelog.generation)

    def _is_emitting(self, changelog: Changelog) -> bool:
        emitter = self._emitters.get(changelog.generation)
        if emitter is not None:
            emitter.look()
        return emitter is not None and emitter.open

    def _check_emitted(self, changelog: Changelog) -> None:
        """Raise InvalidRequest or AlreadyExists if its pairs have no place in the dataset that its rule names."""
        if changelog.rule.emitted_schema is None:
            return
        request, schema = _emitted(changelog)
        if request.dataset == changelog.name:
            raise InvalidRequest(
                f"keep: changelog {changelog.name!r} cannot emit into itself; give 'emit' another name",
                dataset=changelog.name,
            )
        target = self.catalogue.get(request.dataset)
        if target is not None and target.failure is None:
            target.check_same(request, schema)

    async def emit_again(self) -> None:
        """Go on with the emitting of recovered changelogs; once, before the compactor runs. A changelog whose rule
        names something else by now, or nothing, emits nothing: a log line and ``statistics`` say so.
        """
        for changelog in self:
            with suppress(FlightShuffleError):
                await self._emit_from(changelog, make=False)
            changelog.wake()

    def changelog_of(self, declared: DeclaredChangelog) -> Changelog:
        """A changelog without rows. Raises OutOfBudget, and as :class:`Layout` and :func:`make_rule`."""
        disk, metadata, name = self.catalogue.disk, self.catalogue.budget.metadata, declared.dataset
        keep = None if declared.keep is None else KeepRule.parse(declared.keep)
        layout = Layout(SchemaMessage(declared.schema).schema, keep)
        assert disk.folder is not None  # it is set before the server listens
        header = FileHeader(disk.folder.owner, name, declared.generation, Kind.CHANGELOG.value, disk.lasting)
        return Changelog(
            declared,
            layout,
            make_rule(keep, layout.schema),
            ChangelogRecords(disk.records or NoDatabase(), disk.pool),
            RunFolder(disk.folder, header, disk.pool, disk.disposal.delete),
            room=metadata.reserve(CHANGELOG_BYTES, f"changelog {name!r}", dataset=name),
            metadata=metadata,
            max_lag_seconds=self.max_lag_seconds,
            **self._hooks,
        )

    def add(self, dataset: Dataset, changelog: Changelog) -> None:
        if changelog.records.row is not None:
            dataset.on_disk = OnDisk(self.catalogue.records)
            dataset.on_disk.commit(changelog.records.row, [changelog.records])
        dataset.attached = AttachedChangelog(changelog, self._append)
        self._changelogs[dataset.generation] = changelog
        self.catalogue.disk.pool.kept_parts = KEPT_DISK_PARTS

    def write(self, dataset: Dataset, *, deletes: bool = False) -> ChangelogWrite:
        """A new write, of rows or of keys to delete. Raises DatasetDropped or DataQuarantined."""
        return ChangelogWrite(self.of(dataset), self.commits, self.threads, deletes=deletes)

    # Holds

    async def hold(self, dataset: Dataset, request: HoldRequest, caller: Caller) -> dict[str, object]:
        """Take, renew, move or release a hold; it is on disk. Cancelling is safe: it is done to its end, or not begun.

        Raises:
            DatasetDropped, DataQuarantined: the changelog takes no writes.
            NotFound, Compacted, InvalidRequest, OutOfBudget: see :meth:`Holds.change`.
            Forbidden: the hold, or the one to be released, is another principal's, and the caller is no admin.
            Unavailable: the disk refuses; each time the holds are what they were.
        """
        changelog = self.of(dataset)
        holds = changelog.holds
        async with changelog.turn:
            changelog.step("write")
            for name in (request.hold, request.releases):
                held = None if name is None else holds.named.get(name)
                if held is not None and held.principal not in (None, caller.principal.name):
                    what = ", whose hold another principal has taken"
                    caller.check_permission(Permission.ADMIN, changelog.name, what)
            # On a server without tokens any client may do everything.
            principal = None if caller.principal.name == ANYONE else caller.principal.name
            change = holds.change(request, changelog.since, changelog.upper, time.monotonic(), principal)
            try:
                with holds.changing(change):
                    await changelog.records.hold(
                        change.stored(), change.released, partial(holds.make, change)
                    )
            except RecordGone:
                raise changelog.dropped() from None
            except DiskTrouble as trouble:
                raise Unavailable(
                    f"dataset {changelog.name!r}: the hold is not on disk: {trouble}; ask again",
                    dataset=changelog.name,
                ) from None
        changelog.wake()
        left = 0.0 if change.hold is None else change.hold.until - time.monotonic()
        return {
            "hold": request.hold,
            "version": change.version,
            "since": changelog.since,
            "upper": changelog.upper,
            "lease_left_seconds": round(left, 3),
        }

    def expire_holds(self) -> None:
        """End holds whose lease or lag has ended; log holds that hold compaction back for long, and forget closed
        changelogs: a duty of the server.
        """
        now = time.monotonic()
        for emitter in self._emitters.values():
            emitter.look()
        for generation, changelog in list(self._changelogs.items()):
            if changelog.state is ChangelogState.CLOSED:
                if changelog.readers:
                    continue
                del self._changelogs[generation]
                self._emitters.pop(generation, None)
                if not self._changelogs:
                    self.catalogue.disk.pool.kept_parts = None
                continue
            if len(changelog.holds) and (ended := changelog.holds.expire(now, changelog.upper)):
                _log.info("holds_ended", dataset=changelog.name, holds=ended)
                lapsed = changelog.holds.lapsed
                versions = {name: lapsed[name].version for name in ended if name in lapsed}
                changelog.records.lapse(versions, wall_time(now), MAX_LAPSED)
                changelog.wake()
            held = changelog.holds.long_held_back(changelog.horizon(now), now)
            if held is not None:
                facts = {"rows": changelog.rows, **asdict(held)}
                _log.warning("compaction_held_back", dataset=changelog.name, **facts)

    def drain(self) -> None:
        """End the streams of followers once they have all versions. Twice is fine."""
        self.reads.draining = True
        for changelog in self:
            changelog.changes.tell()

    def close(self) -> None:
        """End the threads. Blocks. Twice is fine."""
        self.threads.shutdown(wait=True, cancel_futures=True)
        self._reading.shutdown(wait=True, cancel_futures=True)
        self.compactor.close()


def _attached_to(dataset: Dataset) -> Changelog | None:
    return dataset.attached.changelog if isinstance(dataset.attached, AttachedChangelog) else None


def _emitted(changelog: Changelog) -> tuple[CreateRequest, SchemaMessage]:
    """The request that creates the changelog that the rule of this one emits into."""
    schema = changelog.rule.emitted_schema
    assert schema is not None
    assert changelog.declared.keep is not None
    name = str(changelog.declared.keep["emit"])
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return (
        CreateRequest(name, Kind.CHANGELOG, schema=text, delay_seconds=DEFAULT_DELAY_SECONDS),
        SchemaMessage.of(schema),
    )


# Recovery


def _recover(store: ChangelogKind, connection: sqlite3.Connection) -> None:
    damaged: list[tuple[int, Quarantined]] = []
    for stored in changelogs(connection):
        if not isinstance(stored, StoredChangelog):
            damaged.append(stored)
            continue
        declared = stored.declared
        try:
            changelog = store.changelog_of(declared)
            restore(changelog, stored, store.memory, store.catalogue.budget.metadata)
            _add(store, changelog)
        except OutOfBudget as full:
            raise OSError(f"changelog {declared.dataset!r} cannot be recovered: {full.message}") from None
        except (Damaged, NotAFile, FlightShuffleError) as refusal:
            why = f"not served: {refusal}" if isinstance(refusal, FlightShuffleError) else str(refusal)
            files = [name for name, *_ in stored.runs]
            entry = Quarantined.now(declared.dataset, declared.generation, why, files)
            damaged.append((stored.row, entry))
    set_aside(store.catalogue, connection, damaged)


def _add(store: ChangelogKind, changelog: Changelog) -> None:
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
