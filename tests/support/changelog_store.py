"""A store of changelogs in a directory, without a server: the engine alone, driven step by step."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Background, Waits
from flight_server.datasets import Catalogue
from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog import Store
from flight_server.kinds.changelog.changelog import Changelog
from flight_server.kinds.changelog.merges import Merge
from flight_server.kinds.changelog.planning import Plan
from flight_server.kinds.changelog.restoring import recover_changelogs
from flight_server.kinds.changelog.runs import Run
from flight_server.kinds.changelog.views import View, ViewPart
from flight_server.memory import Budget
from flight_server.protocol import DIFF_COLUMN, CreateRequest, KeepRule, Kind, Transaction
from flight_server.storage import Disk
from flight_server.tiering import delete_garbage

NAME = "log"


def snapshot_of(view: View, version: int) -> Iterator[pa.RecordBatch]:
    """The collection at a version, in parts; parts may be empty."""
    part = ViewPart()
    while part.left:
        part = view.snapshot_part(version, part)
        assert part.rows is not None
        yield part.rows


def deltas_of(view: View, after: int, upto: int) -> Iterator[pa.RecordBatch]:
    """The changes of the collection between two versions, in parts; parts may be empty."""
    part = ViewPart()
    while part.left:
        part = view.deltas_part(after, upto, part)
        assert part.rows is not None
        yield part.rows


class Engine:
    """One store with one changelog. Every method blocks; ``close`` at the end."""

    def __init__(self, directory: Path, schema: pa.Schema, keep: dict[str, Any] | None) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.schema = schema
        budget = Budget(256 << 20, None)
        self.disk = Disk(budget.disk, directory)
        self.catalogue = Catalogue(budget, self.disk)
        self.background = Background(_raise)
        self.store: Store = self.run(self._make())
        try:
            recover_changelogs(self.store)
            delete_garbage(self.catalogue)
        except BaseException:
            self.close()
            raise
        if not list(self.store):
            request = CreateRequest(
                NAME,
                Kind.CHANGELOG,
                schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
                keep=None if keep is None else KeepRule.parse(keep),
                delay_seconds=0.0,
            )
            self.run(self.store.create(request, SchemaMessage.of(schema)))

    async def _make(self) -> Store:
        return Store(
            self.catalogue,
            self.background,
            Waits(),
            deadline_seconds=30.0,
            max_lag_seconds=3600.0,
            max_message_bytes=32 << 20,
        )

    @property
    def changelog(self) -> Changelog:
        changelog: Changelog = self.store.of(self.catalogue.find(NAME))
        return changelog

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def commit(
        self, updates: list[tuple[tuple[Any, ...], int]], transaction: Transaction | None = None
    ) -> int:
        """Commit rows with their diffs; the version."""
        columns = [
            pa.array([row[number] for row, _ in updates], type=field.type)
            for number, field in enumerate(self.schema)
        ]
        diffs = pa.array([diff for _, diff in updates], type=pa.int64())
        batch = pa.RecordBatch.from_arrays(
            [*columns, diffs], schema=self.schema.append(pa.field(DIFF_COLUMN, pa.int64()))
        )
        return int(self.run(self._commit(batch, transaction)))

    def delete(self, keys: list[tuple[Any, ...]], transaction: Transaction | None = None) -> int:
        """Delete the rows of these keys; the version."""
        schema = self.changelog.layout.key_schema
        columns = [
            pa.array([key[number] for key in keys], type=field.type) for number, field in enumerate(schema)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        return int(self.run(self._commit(batch, transaction, deletes=True)))

    async def _commit(
        self, batch: pa.RecordBatch, transaction: Transaction | None, *, deletes: bool = False
    ) -> int:
        write = self.store.write(self.catalogue.find(NAME), deletes=deletes)
        await write.add(batch, self.catalogue.budget.frames.reserve(batch.nbytes))
        return int((await write.commit(transaction)).version)

    def begin_merge(self, runs: tuple[Run, ...], since: int, *, to_file: bool) -> Merge:
        changelog = self.changelog
        changelog.since = max(changelog.since, since)
        return Merge(changelog, Plan(runs, to_file=to_file), changelog.since)

    def publish(self, merge: Merge) -> None:
        self.run(merge.publish(self.store.threads, self.store.memory))

    def snapshot(self, version: int) -> Counter[tuple[Any, ...]]:
        """What readers get, as rows."""
        found: Counter[tuple[Any, ...]] = Counter()
        for batch in snapshot_of(self.changelog.view(), version):
            found.update(_rows(batch))
        return found

    def deltas(self, after: int, upto: int) -> dict[tuple[Any, ...], int]:
        found: dict[tuple[Any, ...], int] = {}
        for batch in deltas_of(self.changelog.view(), after, upto):
            for *row, diff in _rows(batch):
                assert tuple(row) not in found, "a row comes twice in consolidated deltas"
                found[tuple(row)] = diff
        return found

    def close(self) -> None:
        self.run(self.background.stop())
        self.store.close()
        self.catalogue.close()
        self.loop.close()


def _rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _raise(event: str, **facts: object) -> None:
    raise AssertionError(f"{event}: {facts}")
