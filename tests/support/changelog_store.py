"""A store of changelogs in a directory, without a server: the engine alone, driven step by step."""

from __future__ import annotations

import asyncio
import base64
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Background, Waits
from flight_server.datasets import Catalogue
from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog import ChangelogKind
from flight_server.kinds.changelog.changelog import Changelog
from flight_server.kinds.changelog.compaction import Work
from flight_server.kinds.changelog.planning import Plan
from flight_server.kinds.changelog.runs import MemoryRun, Run
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
        part = view.part(None, version, part)
        assert part.rows is not None
        yield part.rows


def deltas_of(view: View, after: int, upto: int) -> Iterator[pa.RecordBatch]:
    """The changes of the collection between two versions, in parts; parts may be empty."""
    part = ViewPart()
    while part.left:
        part = view.part(after, upto, part)
        assert part.rows is not None
        yield part.rows


class Engine:
    """One store with one changelog. Every method blocks; ``close`` at the end.

    Args:
        lasting: the directory outlives it.
    """

    def __init__(
        self, directory: Path, schema: pa.Schema, keep: dict[str, Any] | None, *, lasting: bool = True
    ) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.schema = schema
        budget = Budget(256 << 20, None)
        self.disk = Disk(budget.disk)
        self.disk.use(directory, owner="0" * 16, lasting=lasting)
        self.catalogue = Catalogue(budget, self.disk)
        self.background = Background(_raise)
        self.store: ChangelogKind = self.run(self._make())
        try:
            self.store.recover()
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

    async def _make(self) -> ChangelogKind:
        return ChangelogKind(
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
        return int(self.run(self._commit(self._batch(updates), transaction)))

    def commit_in_batches(self, *groups: list[tuple[tuple[Any, ...], int]]) -> int:
        """Commit all as one version, each in a batch of its own; the version."""
        return int(self.run(self._commit_batches([self._batch(updates) for updates in groups], None)))

    def commit_together(self, *groups: list[tuple[tuple[Any, ...], int]]) -> list[int]:
        """Commit each as a version, all in one group; the versions."""

        async def commits() -> list[int]:
            return await asyncio.gather(*(self._commit(self._batch(updates), None) for updates in groups))

        return list(self.run(commits()))

    def _batch(self, updates: list[tuple[tuple[Any, ...], int]]) -> pa.RecordBatch:
        columns = [
            pa.array([row[number] for row, _ in updates], type=field.type)
            for number, field in enumerate(self.schema)
        ]
        diffs = pa.array([diff for _, diff in updates], type=pa.int64())
        return pa.RecordBatch.from_arrays(
            [*columns, diffs], schema=self.schema.append(pa.field(DIFF_COLUMN, pa.int64()))
        )

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
        return await self._commit_batches([batch], transaction, deletes=deletes)

    async def _commit_batches(
        self, batches: Sequence[pa.RecordBatch], transaction: Transaction | None, *, deletes: bool = False
    ) -> int:
        write = self.store.write(self.catalogue.find(NAME), deletes=deletes)
        for batch in batches:
            await write.add(batch, self.catalogue.budget.frames.reserve(batch.nbytes))
        return int(await write.commit(transaction))

    def begin_fold(self, since: int, first: int = 0, last: int | None = None, *, to_file: bool) -> Work:
        """Begin to fold some ranges, all if none are named."""
        changelog = self.changelog
        end = len(changelog.contents.bases.ranges) - 1
        plan = Plan((first, end if last is None else last) if to_file else (0, end), to_file=to_file)
        return self.store.compactor.start(changelog, plan, since)

    def begin_rewrite(self, runs: Sequence[Run], *, to_file: bool) -> Work:
        """Begin to rewrite recent runs, all in memory or all files."""
        plan = Plan(runs=tuple(runs), to_file=to_file)
        return self.store.compactor.start(self.changelog, plan, 0)

    def publish(self, going: Work) -> None:
        """Do the work to its end, and let it count."""
        for _ in going.steps:
            pass
        self.run(self.store.compactor.publish(self.changelog, going))

    def fold(self, since: int | None = None) -> None:
        """Fold all up to a version, or what is old now, as often as it takes; what is later goes to a file, too."""
        changelog = self.changelog
        since = changelog.advanced_since(time.monotonic()) if since is None else since

        def unfolded() -> int | None:
            for number, each in enumerate(changelog.contents.bases.ranges):
                if each.since < since or isinstance(each.base, MemoryRun):
                    return number
            return None

        while (number := unfolded()) is not None:
            self.publish(self.begin_fold(since, number, number, to_file=True))
        runs = [run for run in changelog.contents.recent if isinstance(run, MemoryRun)]
        if runs:
            self.publish(self.begin_rewrite(runs, to_file=True))

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

    def copy_to(self, directory: Path) -> Path:
        """What the disk has at this moment. Without files that the disposal deletes meanwhile: no record names them."""

        def copied(source: str, target: str) -> None:
            with suppress(FileNotFoundError):
                shutil.copy2(source, target)

        return Path(shutil.copytree(self.directory, directory, copy_function=copied))

    def close(self) -> None:
        self.run(self.background.stop())
        self.store.close()
        self.catalogue.close()
        self.loop.close()


def _rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _raise(event: str, **facts: object) -> None:
    raise AssertionError(f"{event}: {facts}")
