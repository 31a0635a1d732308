"""ChangelogKind: the kind ``changelog``, as the server's other rooms see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Background, in_slices
from flight_server.datasets import Caller, Dataset
from flight_server.frames import SchemaMessage
from flight_server.kinds import Action, BatchSink, check_totals, committed
from flight_server.memory import Reservation
from flight_server.protocol import (
    HOLD,
    Commit,
    FlightShuffleError,
    HoldRequest,
    InvalidRequest,
    Kind,
    PutCommand,
    Versions,
)
from flight_server.tiering import Admission

from .compactor import DUTIES
from .reads import ChangelogRead
from .restoring import recover_changelogs
from .store import Store
from .version_appends import VersionAppends

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


class ChangelogKind(Store):
    """The store of a server."""

    def take_appends(self, admission: Admission) -> None:
        """Let staged writes be appended to the changelogs that are made from now on."""
        limit_bytes = self.reads.max_message_bytes
        appends = VersionAppends(self, admission, self._background, max_message_bytes=limit_bytes)
        self.append = appends.append

    @property
    def actions(self) -> Mapping[str, Action]:
        return {HOLD: self._hold}

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> ChangelogSink:
        assert dataset is not None
        if command.generation is not None:
            self.catalogue.find(command.dataset, command.generation)
        return ChangelogSink(self, command, dataset, schema)

    def read(self, dataset: Dataset, versions: Versions | None, until: int | None) -> ChangelogRead:
        if until is not None:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is a changelog: its readers say 'as_of' or 'after', not 'until'",
                dataset=dataset.name,
            )
        return ChangelogRead(self.reads, self.of(dataset), versions or Versions())

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
        recover_changelogs(self)

    async def start(self, background: Background, every_seconds: float) -> None:
        await self.emit_again()
        for number in range(DUTIES):
            background.keep(self.compactor.run, f"compactor {number}")
        background.keep(self._expire_holds, "holds", every_seconds=every_seconds)

    async def _expire_holds(self) -> None:
        self.expire_holds()


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
        self._write = self._store.write(self.dataset, deletes=self._command.delete)
        self._committed: dict[str, Any] | None = None

    async def add(
        self, batch: pa.RecordBatch, room: Reservation, dictionaries: Sequence[Reservation]
    ) -> None:
        await self._write.add(batch, room, dictionaries)

    async def commit(self, totals: Commit) -> dict[str, Any]:
        check_totals(totals, self._write.rows, self._write.frames, self.dataset)
        return await self._commit()

    async def _commit(self) -> dict[str, Any]:
        write = self._write
        version = await write.commit(self._command.transaction)
        self._committed = committed(self.dataset, write.rows, write.size_bytes, version=version)
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
