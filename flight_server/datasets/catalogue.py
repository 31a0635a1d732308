"""Catalogue: finds a dataset by its name; creates, replaces, drops and expires datasets.

Guarantee: every change of the catalogue is one synchronous step, so a name never leads to an incomplete dataset.
After a replacement new readers get the new generation, and readers of the old one finish.

Who holds what
    The catalogue holds the datasets that have a name, and staged writes (``staged_writes``). Readers hold a dataset
    that has left the catalogue, and a producer a dataset that is not yet in it (a stream's overwrite before its seal).
    :meth:`Catalogue.alive` lists all of them.

Durable datasets
    After a crash a name leads to the generation that it led to last: a durable overwrite is one transaction of the
    records with the deletion of what it replaces; a drop or an expiry is committed before it takes the name away. If
    the records refuse, the dataset stays as it is. A dataset that is being sealed does not expire. While the deletion
    of an expired one is under way, calls for it are refused (:meth:`Catalogue.check_stays`). Exceptions:
    ``create`` replaces a *failed* dataset at once, and its row is deleted before anything that is committed later; a
    durable seal without an answer may have the name, although a dataset that is not durable took it meanwhile.
"""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from typing import Any

from flight_server.access import Usages
from flight_server.frames import SchemaMessage, Schemas
from flight_server.memory import Budget
from flight_server.protocol import (
    CreateRequest,
    Draining,
    InvalidRequest,
    NotFound,
    OutOfBudget,
    Unavailable,
    WriteMode,
)
from flight_server.records import Database, DiskTrouble, delete_quarantined
from flight_server.storage import Disk

from .dataset import Dataset
from .generations import (
    SERVER_ENDED,
    DroppedRuns,
    Endings,
    check_start,
    missing,
    new_generation,
    stale,
)
from .host_copies import HostCopies
from .on_disk import Deletion, Leaving, OnDisk
from .staged_writes import Sealed, StagedWrites, as_it_was, check_mode, is_repeated
from .transactions import Transactions

DEFAULT_MAX_DATASETS = 100_000


class Catalogue:
    """The datasets by name, the staged writes, and the threads that drop them. ``lease_seconds``: of datasets created
    without a lease, unless they are ``lasting``; None keeps them until a drop.
    """

    def __init__(
        self,
        budget: Budget,
        disk: Disk,
        *,
        lease_seconds: float | None = None,
        max_datasets: int = DEFAULT_MAX_DATASETS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self.schemas = Schemas(budget)
        self.disk = disk
        self.draining = False
        self.started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        self._lease_seconds = lease_seconds
        self._max_datasets = max_datasets
        self.clock = clock
        self._datasets: dict[str, Dataset] = {}
        self.staged = StagedWrites()
        self.dropped_runs = DroppedRuns()
        self.endings = Endings()
        self.copies = HostCopies(budget.metadata, self.leads_to, clock)
        self.usages = Usages(budget)
        # The keys count up.
        self._alive: weakref.WeakValueDictionary[int, Dataset] = weakref.WeakValueDictionary()
        self._made = 0
        # The deletions of :meth:`forget` that are not committed, each with the name.
        self._forgotten: dict[Future[Any], str] = {}

    def __iter__(self) -> Iterator[Dataset]:
        return iter(list(self._datasets.values()))

    def __len__(self) -> int:
        return len(self._datasets)

    def has(self, name: str) -> bool:
        return name in self._datasets

    def leads_to(self, name: str, generation: str) -> bool:
        dataset = self._datasets.get(name)
        return dataset is not None and dataset.generation == generation

    def get(self, name: str, generation: str | None = None) -> Dataset | None:
        """The staged dataset of that generation, else the current one of that name."""
        return self.staged.find(name, generation) or self._datasets.get(name)

    def find(self, name: str, generation: str | None = None, start: str | None = None) -> Dataset:
        """The current dataset of that name, or the staged one of that generation.

        Raises:
            ServerLost: it is wanted of another ``start`` of a server.
            NotFound, DataQuarantined: there is none, or one in the quarantine.
            StaleTicket: it has another generation.
            Unavailable: see :meth:`check_stays`.
        """
        check_start(name, start)
        dataset = self._find(name, generation, here=start is not None)
        self.check_stays(dataset)
        return dataset

    def _find(self, name: str, generation: str | None, *, here: bool = False) -> Dataset:
        """As :meth:`find`, also a dataset whose lease has ended."""
        dataset = self.get(name, generation)
        if dataset is None:
            self.disk.quarantine.check(name)
            raise missing(name, generation, self.started, here=here, ended=self.endings)
        if generation is not None and generation != dataset.generation:
            raise stale(name, generation, self.started, here=here, ended=self.endings)
        return dataset

    def check_stays(self, dataset: Dataset) -> None:
        """Raise Unavailable if the deletion of a dataset is under way, because its lease or its retention has ended: no
        call renews it any more. If the disk refuses the deletion, the dataset stays until the next one.
        """
        if dataset.on_disk is not None and dataset.on_disk.leaving is not None:
            raise Unavailable.about(dataset.name, f"{dataset.why_gone}, and is being deleted; try again")

    def listed(self, prefix: str) -> list[Dataset]:
        """Those whose name starts with ``prefix``, sorted by name."""
        return [self._datasets[name] for name in sorted(self._datasets) if name.startswith(prefix)]

    def transactions_of(self, dataset: Dataset) -> Transactions:
        """The transactions that the dataset remembers once it has its name; see ``transactions``."""
        before = self._datasets.get(dataset.name)
        return dataset.transactions.replacing(None if before is None else before.transactions)

    # Changing

    def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """The dataset of that name, and whether it was made now. Twice is fine. A failed dataset is replaced.

        Raises:
            Draining: the server is going down.
            AlreadyExists, InvalidRequest: the name leads to a different dataset (:meth:`Dataset.check_same`).
            Unavailable: see :meth:`check_stays`.
            InvalidRequest, OutOfBudget: see :meth:`prepare`.
        """
        self.check_open()
        known = self._datasets.get(request.dataset)
        if known is not None and known.failure is None:
            self.check_stays(known)
            known.check_same(request, schema)
            known.describe(None if schema is None else self.schemas.hold(schema, known.name))
            known.touch()
            return known, False
        dataset = self.prepare(request, schema)
        self.install(dataset)
        return dataset, True

    def stage(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """The staged dataset of that ``write``, and whether it was made now; see ``staged_writes``. The dataset of the
        name if that has the write's transaction.

        Raises:
            AlreadyExists: mode ``new``, and the name leads to a dataset. NotFound: mode ``delete``, and it does not.
            Conflict, InvalidRequest: mode ``append``, and the dataset cannot be extended, or not with that schema.
            Draining, InvalidRequest, OutOfBudget: the server is going down; or see :meth:`prepare`.
            Unavailable: see :meth:`check_stays`.
        """
        self.check_open()
        write, mode = request.write, request.mode
        assert write is not None
        assert mode is not None
        old = self.find(request.dataset) if mode is WriteMode.DELETE else self._datasets.get(request.dataset)
        if old is not None:
            self.check_stays(old)
        repeated = old is not None and is_repeated(request, old)
        if old is not None and repeated and self.staged.has_ended(write, request.dataset):
            return old, False
        known = self.staged.known(write, request.dataset)
        if known is not None:
            known.check_schema(schema)
            known.renew()
            return known, False
        if old is not None:
            if repeated:
                return old, False
            request = as_it_was(request, old)
            check_mode(mode, old, schema, durable=request.durable)
        dataset = self.prepare(request, schema)
        self.staged.add(write, dataset, mode)
        return dataset, True

    def take_name(self, staged: Dataset) -> None:
        """Let the name lead to a staged dataset, which is sealed."""
        self.staged.end(staged, "was sealed")
        self.install(staged)

    def unstage(self, staged: Dataset, appended: Sealed | None = None) -> None:
        """Drop a staged dataset; see :meth:`StagedWrites.end`."""
        if appended is not None:
            staged.why_gone = "was sealed, and is a part of the dataset of its name"
        self.staged.end(staged, staged.why_gone, appended)
        staged.drop()
        self.endings.add(staged.name, staged.generation, staged.why_gone, staged=True)

    def check_open(self) -> None:
        """Raise Draining if the server is going down."""
        if self.draining:
            raise Draining(
                "the server is draining and begins nothing new; use another one, or wait for its restart"
            )

    def drop(self, name: str, generation: str | None = None, why: str = "was dropped") -> Dataset:
        """Drop it, because of ``why``. Raises NotFound, DataQuarantined or StaleTicket as :meth:`find`. The row of a
        durable one is deleted before anything that is committed later; :meth:`remove` returns after that.
        """
        dataset = self._find(name, generation)
        dataset.why_gone = why
        self._take_away(dataset, dropped=True)
        self.forget(dataset)
        return dataset

    def prepare(
        self, request: CreateRequest, schema: SchemaMessage | None, *, lasting: bool = False
    ) -> Dataset:
        """Make a dataset that no name leads to yet. A ``lasting`` one has a lease only if the request says so.

        Raises:
            InvalidRequest: it is to be durable without a lasting data directory.
            OutOfBudget: ``max_datasets`` is reached, or ``metadata`` has no room.
        """
        count = len(self._datasets) + len(self.staged)
        if count >= self._max_datasets and (request.write or request.dataset not in self._datasets):
            raise OutOfBudget.about(
                request.dataset,
                "cannot be created: this server has as many as --max-datasets allows; drop some, let leases end, or "
                "raise it",
            )
        if request.durable and not self.disk.lasting:
            raise InvalidRequest.about(
                request.dataset,
                "cannot be durable: this server was started without --data-dir and keeps nothing when it ends",
            )
        generation = request.generation or new_generation()
        lease_seconds = request.lease_seconds
        if lease_seconds is None and not (lasting or request.durable):
            lease_seconds = self._lease_seconds
        dataset = Dataset(
            request.dataset,
            kind=request.kind,
            partitions=request.partitions,
            schema=None if schema is None else self.schemas.hold(schema, request.dataset),
            producers=request.producers,
            retention=request.retention,
            lease_seconds=lease_seconds,
            writer=self.disk.writer(request.dataset, generation, request.kind, durable=request.durable),
            on_disk=OnDisk(self.records) if request.durable else None,
            metadata=self.budget.metadata,
            generation=generation,
            clock=self.clock,
        )
        self.register(dataset)
        return dataset

    @property
    def records(self) -> Database:
        """The records of a server whose datasets can be durable."""
        assert self.disk.records is not None
        return self.disk.records

    def register(self, dataset: Dataset) -> None:
        self._made += 1
        self._alive[self._made] = dataset

    def install(self, dataset: Dataset) -> None:
        """Let the name lead to this dataset; see :meth:`Dataset.replaced`."""
        before = self._datasets.get(dataset.name)
        self._datasets[dataset.name] = dataset
        if before is not None and before is not dataset:
            dataset.transactions = dataset.transactions.replacing(before.transactions)
            before.replaced()
            self.forget(before)

    def expire(self) -> Iterator[Dataset | None]:
        """Take away the datasets whose lease or retention in seconds has ended; each, or None for one that stays.
        Of a committed durable dataset the deletion is begun; a later call takes it away.
        """
        # Neither list holds a dataset that was looked at: all would be released in one step.
        staged, names = self.staged.all(), list(self._datasets)
        while staged:
            dataset = staged.pop()
            if gone := self.staged.has_left(dataset):
                dataset.note_end()
                self.unstage(dataset)
            yield dataset if gone else None
            del dataset
        yield from map(self._expired, names)

    def _expired(self, name: str) -> Dataset | None:
        dataset = self._datasets.get(name)
        if dataset is None:
            return None  # it was dropped meanwhile
        on_disk = dataset.on_disk
        if on_disk is not None and on_disk.turn.locked():
            return None  # it is being sealed
        ended: Leaving | None = "expired" if dataset.expired else "retired" if dataset.outlived else None
        if on_disk is None or on_disk.leaving is None:
            dataset.note_end()
            if ended is not None and on_disk is not None and on_disk.row is not None:
                on_disk.leaving = leaving = on_disk.deletion(finishing=ended == "retired")
                leaving.why, leaving.done = ended, self.records.submit(leaving.change)
                return None
        else:
            leaving = on_disk.leaving
            assert leaving.done is not None
            if not leaving.done.done():
                return None
            if leaving.done.exception() is not None:
                on_disk.leaving = None  # the next call tries again
                return None
            leaving.committed()
            ended = leaving.why
        if ended is not None:
            self._take_away(dataset, dropped=ended != "retired")
        return None if ended is None else dataset

    def _take_away(self, dataset: Dataset, *, dropped: bool) -> None:
        if self.staged.mode_of(dataset) is not None:
            self.unstage(dataset)
        elif self._datasets.get(dataset.name) is dataset:
            del self._datasets[dataset.name]
            if dropped:
                dataset.drop()
            self.endings.add(dataset.name, dataset.generation, dataset.why_gone)
            dataset.ended = True  # at the end of the retention readers in progress finish

    # Durable datasets

    def restore(self, dataset: Dataset) -> None:
        self.register(dataset)
        self.install(dataset)

    def forget(self, dataset: Dataset) -> None:
        """Delete the row of a durable dataset before all later commits. If the server ends before, it stays."""
        on_disk = dataset.on_disk
        if on_disk is not None and on_disk.row is not None:
            deletion = on_disk.deletion(finishing=not dataset.dropped)
            done = self.records.eventually(deletion.change)
            self._forgotten[done] = dataset.name
            done.add_done_callback(partial(self._was_forgotten, deletion))

    def _was_forgotten(self, deletion: Deletion, done: Future[Any]) -> None:
        """In the thread of the records."""
        if done.exception() is None:
            deletion.committed()
        self._forgotten.pop(done, None)

    def _is_forgotten(self, name: str) -> bool:
        """Whether no row of that name is still to be deleted."""
        return name not in list(self._forgotten.values())

    async def remove(
        self, name: str, generation: str | None = None, *, staged: bool = False, why: str = "was dropped"
    ) -> Dataset:
        """Drop a dataset. The name leads to a durable one until the deletion of its row is committed.

        A staged write whose seal is under way is dropped after the seal. Cancelling is safe: the removal is made to its
        end, or has not begun. ``staged``: only while it is staged. ``why``: see ``generations``.

        Raises:
            NotFound, DataQuarantined, StaleTicket: see :meth:`find`.
            NotFound: it is to be ``staged``, and is not.
            Unavailable: the records refuse now; the dataset stays as it is.
        """
        dataset = self._find(name, generation)
        if (
            dataset.on_disk is None
            and self.staged.mode_of(dataset) is None
            and not staged
            and self._is_forgotten(name)
        ):
            return self.drop(name, generation, why)
        async with self.disk.turn(name):
            # Without a generation it is the one that the name leads to by now.
            dataset = self._find(name, generation)
            if staged and self.staged.mode_of(dataset) is None:
                raise NotFound(
                    f"this generation of dataset {name!r} is not staged: it was sealed", dataset=name
                )
            has_row = dataset.on_disk is not None and dataset.on_disk.row is not None
            if not has_row and self._is_forgotten(name):
                self.drop(name, dataset.generation, why)
            else:
                await self._remove(dataset, why)
        await self.disk.disposal.wait_idle()  # its segments are gone, too
        return dataset

    async def _remove(self, dataset: Dataset, why: str) -> None:
        """Drop it with a commit: it has a row, or one of its name is still to be deleted, which goes before."""
        quarantine, on_disk = self.disk.quarantine, dataset.on_disk
        deletion: Deletion | None = None
        if on_disk is not None and on_disk.row is not None:
            deletion = on_disk.deletion(finishing=False, dropped=True)
        noted = quarantine.of(dataset.name, dataset.generation)

        def change(connection: sqlite3.Connection) -> None:
            if deletion is not None:
                deletion.change(connection)
            delete_quarantined(connection, noted)

        def take_away() -> None:
            if deletion is not None:
                deletion.committed()
            if later := quarantine.of(dataset.name, dataset.generation)[len(noted) :]:
                # A reader has met damage during the commit.
                self.records.eventually(partial(delete_quarantined, entries=later))
            quarantine.unlisted(*noted, *later)
            dataset.why_gone = why
            self._take_away(dataset, dropped=True)

        try:
            await self.records.commit(change, take_away)
        except DiskTrouble as trouble:
            raise Unavailable.about(
                dataset.name,
                f"is not dropped: {trouble}. It stays as it is; drop it again when the disk works",
            ) from None

    async def drop_quarantined(self, name: str) -> str | None:
        """Delete what is in the quarantine of a name that leads to no dataset, with its files; the last generation, or
        None if there is nothing. Cancelling is safe, as for :meth:`remove`. Raises Unavailable: the records refuse now.
        """
        entries = [entry for entry in self.disk.quarantine.entries if entry.dataset == name]
        if self.has(name) or not entries or self.disk.folder is None:
            return None
        try:
            files = await self.disk.quarantine.drop(name)
        except DiskTrouble as trouble:
            raise Unavailable.about(name, f"is not dropped: {trouble}") from None
        for path in self.disk.folder.own(files):
            self.disk.delete(path)
        await self.disk.disposal.wait_idle()
        return entries[-1].generation or ""

    def alive(self) -> list[Dataset]:
        """All datasets that an object holds, oldest first, also without a name."""
        return list(self._alive.values())

    def close(self) -> None:
        """Drop all but sealed durable datasets and end the threads, after :meth:`Disk.end_commits`. Blocks."""
        for dataset in self.staged.all():
            dataset.why_gone = SERVER_ENDED
            self.unstage(dataset)
        for dataset in self:
            dataset.why_gone = SERVER_ENDED
            del self._datasets[dataset.name]
            if not (dataset.durable and dataset.sealed):
                dataset.drop()
        self.disk.close()
