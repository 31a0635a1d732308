"""ChangelogKind: the kind ``changelog``, as the server's other rooms see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Background, in_slices
from flight_server.datasets import Caller, Dataset
from flight_server.frames import SchemaMessage
from flight_server.kinds import (
    Action,
    BatchSink,
    DatasetKind,
    VersionBurst,
    VersionRead,
    check_totals,
    committed,
)
from flight_server.memory import Reservation
from flight_server.protocol import (
    HOLD,
    Commit,
    CreateRequest,
    FlightShuffleError,
    HoldRequest,
    InvalidRequest,
    Kind,
    PutCommand,
    Versions,
    ipc_framing,
)
from flight_server.tiering import Reader

from .changelog import Changelog
from .compactor import DUTIES
from .restoring import recover_changelogs
from .store import Store
from .version_appends import VersionAppends

METRICS = {
    "changelogs_damaged": "changelogs that were found damaged on disk",
    "changelogs_not_emitting": "changelogs whose rule's pairs go nowhere, or wait until their target takes rows",
    "changelog_rows": "updates in the runs of all changelogs",
    "changelog_keys": "about so many keys of all changelogs",
    "changelog_tombstones": "deletes in those runs",
    "changelog_waiting_retractions": "retractions of bases, whose rows may still come",
    "changelog_transaction_ids": "ids of transactions that are remembered",
    "changelog_ranges": "ranges of keys' hashes of all changelogs",
    "changelog_runs": "runs of all changelogs",
    "changelog_memory_bytes": "bytes of runs in RAM",
    "changelog_disk_bytes": "bytes of run files, and of rows that no file has",
    "changelog_debt_rows": "updates that are in no base yet",
    "changelog_garbage_rows": "rows of which a fold may leave nothing; holds may keep them",
    "changelog_holds": "holds on versions",
    "changelog_followers": "open streams of deltas",
    "changelogs_held_back": "changelogs whose compaction waits for a hold; statistics and the log name it",
    "changelogs_held_back_max_seconds": "how long the version of such a hold has been out of date, at most",
    "changelog_versions": "versions committed to the changelogs that there are",
}
_ADDED_UP = (
    *("rows", "keys", "tombstones", "waiting_retractions", "transaction_ids", "garbage_rows"),
    *("ranges", "runs", "disk_bytes", "debt_rows", "followers"),
)
CHANGELOGS_AT_ONCE = 10
"""Changelogs between two passes of the event loop: one of 30 runs takes 0.04 ms, one of the most runs 0.3 ms."""


class ChangelogKind(DatasetKind):
    """Datasets of kind ``changelog``; ``store`` has them."""

    def __init__(self, store: Store, appends: VersionAppends) -> None:
        super().__init__(store.catalogue)
        self._store = store
        store.append = appends.append

    @property
    def actions(self) -> Mapping[str, Action]:
        return {HOLD: self._hold}

    async def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """Raises as :meth:`Store.create`."""
        assert schema is not None
        return await self._store.create(request, schema)

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> ChangelogSink:
        assert dataset is not None
        if command.generation is not None:
            self.catalogue.find(command.dataset, command.generation)
        return ChangelogSink(self._store, command, dataset, schema)

    def read(self, dataset: Dataset, versions: Versions | None, until: int | None) -> VersionRead:
        if until is not None:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is a changelog: its readers say 'as_of' or 'after', not 'until'",
                dataset=dataset.name,
            )
        return _ChangelogRead(self._store, self._store.of(dataset), versions or Versions())

    async def _hold(self, body: bytes, caller: Caller) -> dict[str, object]:
        """The answer to the action ``hold`` with this body.

        Raises:
            InvalidRequest: the body, or the dataset is no changelog.
            NotFound: there is no such dataset; or, like the other errors, as :meth:`Store.hold`.
        """
        request = HoldRequest.parse(body)
        dataset = caller.find(request.dataset, request.generation)
        if dataset.kind is not Kind.CHANGELOG:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is of kind {dataset.kind.value!r}: only versions of a changelog are held",
                dataset=dataset.name,
            )
        dataset.touch()
        return await self._store.hold(dataset, request, caller)

    async def metrics(self) -> list[tuple[str, str, float]]:
        """Totals, which are added up in slices, so that the loop serves the streams meanwhile."""
        sums: Counter[str] = Counter(dict.fromkeys(METRICS, 0))
        found = [self._store.of(dataset) for dataset in self.catalogue if dataset.kind is Kind.CHANGELOG]
        async for changelog in in_slices(found, CHANGELOGS_AT_ONCE):
            _add(sums, changelog.statistics())
        return [(name, text, sums[name]) for name, text in METRICS.items()]

    def recover(self) -> None:
        recover_changelogs(self._store)

    async def start(self, background: Background, every_seconds: float) -> None:
        await self._store.start()
        for number in range(DUTIES):
            background.keep(self._store.compactor.run, f"compactor {number}")
        background.keep(self._expire_holds, "holds", every_seconds=every_seconds)

    async def _expire_holds(self) -> None:
        self._store.expire_holds()

    def drain(self) -> None:
        self._store.drain()

    def close(self) -> None:
        self._store.close()


def _add(sums: Counter[str], numbers: dict[str, Any]) -> None:
    sums["changelogs_damaged"] += "damage" in numbers
    sums["changelogs_not_emitting"] += "not_emitting" in numbers
    sums["changelog_holds"] += numbers["hold_count"]
    if (held := numbers["held_back"]) is not None:
        sums["changelogs_held_back"] += 1
        longest = "changelogs_held_back_max_seconds"
        sums[longest] = max(sums[longest], held["seconds"])
    sums["changelog_versions"] += numbers["upper"]
    sums["changelog_memory_bytes"] += numbers["bytes"]
    for name in _ADDED_UP:
        sums[f"changelog_{name}"] += numbers[name]


@dataclass(frozen=True)
class _ChangelogRead:
    """See :class:`VersionRead`, and :meth:`ChangelogReads.read` for the errors of ``bursts``."""

    store: Store
    changelog: Changelog
    versions: Versions

    def check(self) -> None:
        self.store.reads.check(self.changelog, self.versions)

    def schema_header(self) -> bytes:
        schema = self.store.reads.schema(self.changelog, self.versions)
        return ipc_framing.schema_header(schema.serialize().to_pybytes())

    def bursts(self, reader: Reader) -> AsyncGenerator[VersionBurst, None]:
        return self.store.reads.read(self.changelog, reader, self.versions)


class ChangelogSink(BatchSink):
    """One put: the rows, or the keys of a delete, become one version when it commits or, without an attempt, when it
    ends cleanly. Another version can follow.
    """

    def __init__(self, store: Store, command: PutCommand, dataset: Dataset, schema: SchemaMessage) -> None:
        if command.partition:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is a changelog: it has no partition {command.partition}",
                dataset=dataset.name,
            )
        self.dataset = dataset
        self._command = command
        self._store = store
        store.of(dataset).check_producer(schema.schema, deletes=command.delete)
        self.begin()

    def begin(self) -> None:
        self._frames = 0
        self._write = self._store.write(self.dataset, deletes=self._command.delete)
        self._committed: dict[str, Any] | None = None

    async def add(
        self, batch: pa.RecordBatch, room: Reservation, dictionaries: Sequence[Reservation]
    ) -> None:
        self._frames += 1
        await self._write.add(batch, room, dictionaries)

    async def commit(self, totals: Commit) -> dict[str, Any]:
        check_totals(totals, self._write.rows, self._frames, self.dataset)
        return await self._commit()

    async def _commit(self) -> dict[str, Any]:
        done = await self._write.commit(self._command.transaction)
        self._committed = committed(self.dataset, done.rows, done.size_bytes, version=done.version)
        return self._committed

    async def end(self) -> dict[str, Any] | None:
        if self._committed is not None:
            return None
        if self._command.attempt is not None:
            raise InvalidRequest(
                f"dataset {self.dataset.name!r}: the producer ended without its commit message; nothing of it was kept",
                dataset=self.dataset.name,
                producer=self._command.producer,
            )
        return await self._commit()

    def abort(self, cause: FlightShuffleError) -> None:
        if self._committed is None:
            self._write.abort()
