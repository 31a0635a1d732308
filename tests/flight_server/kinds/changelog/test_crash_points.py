"""Changelogs after a crash at every step of what they write: commits, holds, rewrites, folds, and recovery itself."""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from flight_server.datasets.transactions import NUMBERS
from flight_server.kinds.changelog import compaction, views, writes
from flight_server.kinds.changelog.runs import MemoryRun, run_files
from flight_server.protocol import HoldRequest, Transaction
from tests.support.callers import anyone
from tests.support.changelog_store import NAME, Engine
from tests.support.crash_points import CrashPoints, Image
from tests.support.keep_model import SCHEMA, Row

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
Update = tuple[Row, int]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 8)
    monkeypatch.setattr(views, "SLICE_ROWS", 8)
    monkeypatch.setattr(run_files, "BLOCK_ROWS", 16)
    monkeypatch.setattr(writes, "CHUNK_ROWS", 20)
    monkeypatch.setattr(compaction, "RANGE_ROWS", 8)


class History:
    """Commits to an engine, and what each version must read as."""

    def __init__(self, engine: Engine, points: CrashPoints) -> None:
        self.engine = engine
        self.points = points
        self.versions: list[list[Update] | set[str]] = []  # of a delete the keys
        self.held = 0

    def commit(self, *updates: Update) -> None:
        self._write(list(updates))

    def delete(self, *keys: str) -> None:
        self._write(set(keys))

    def _write(self, version: list[Update] | set[str]) -> None:
        self.versions.append(version)
        number = len(self.versions)
        assert write(self.engine, version, number) == number
        self.points.acknowledged = number

    def hold(self) -> None:
        request = HoldRequest(NAME, "reader", lease_seconds=3600.0, version=len(self.versions))
        self.engine.run(
            self.engine.store.hold(self.engine.catalogue.find(NAME), request, anyone(self.engine.catalogue))
        )

    def rewrite(self) -> None:
        runs = [run for run in self.engine.changelog.contents.recent if isinstance(run, MemoryRun)]
        self.engine.publish(self.engine.begin_rewrite(runs, to_file=True))

    def fold(self, last: int | None = None, *, to_file: bool = True, commit: Sequence[Update] = ()) -> None:
        """Fold ranges up to a place, all if it is not given; a commit comes meanwhile."""
        since = self.engine.changelog.advanced_since(time.monotonic())
        going = self.engine.begin_fold(since, 0, last, to_file=to_file)
        next(going.steps)
        if commit:
            self.commit(*commit)
        self.engine.publish(going)

    def shown(self, version: int) -> Counter[Row]:
        counts: Counter[Row] = Counter()
        for updates in self.versions[:version]:
            if isinstance(updates, set):
                counts = Counter({row: count for row, count in counts.items() if row[0] not in updates})
                continue
            for row, diff in updates:
                counts[row] += diff
        best: dict[str, Row] = {}
        for row in +counts:
            if row[0] not in best or row[1:] > best[row[0]][1:]:
                best[row[0]] = row
        return Counter(best.values())


def write(engine: Engine, version: list[Update] | set[str], number: int) -> int:
    transaction = Transaction("writer", number)
    if isinstance(version, set):
        return engine.delete([(key,) for key in sorted(version)], transaction)
    return engine.commit(version, transaction)


def rows(first: int, count: int, time_: int) -> list[Update]:
    return [((f"key {number}", time_, "bid", number), 1) for number in range(first, first + count)]


def work(history: History) -> None:
    """Everything that a changelog writes."""
    history.commit(*rows(0, 3, 1))
    history.commit(*rows(0, 2, 1))
    history.fold(to_file=False)
    history.hold()
    history.commit(*rows(1, 3, 2), (("key 0", 1, "bid", 0), -1))
    history.commit(*rows(0, 24, 3))  # in a run file
    history.rewrite()
    history.hold()
    history.fold()
    assert len(history.engine.changelog.contents.bases.ranges) > 1
    history.commit(*rows(5, 2, 4))
    history.rewrite()
    history.delete(*(f"key {number}" for number in range(21)))  # in a run file
    history.fold(1)
    history.commit(*rows(10, 22, 5))
    history.fold(commit=[(("key 11", 5, "bid", 11), -1), *rows(40, 1, 6)])
    history.commit(*rows(3, 1, 7))
    history.delete("key 3", "key 22")


def check(image: Image, history: History, also: int = 1) -> None:
    """The image has all that was acknowledged, and at most what was being written."""
    engine = Engine(image.path, SCHEMA, LATEST)
    try:
        changelog = engine.changelog
        assert engine.disk.quarantine.entries == [], image.step
        upper = changelog.upper
        assert image.acknowledged <= upper <= image.acknowledged + also, image.step
        for version in {changelog.since, upper}:
            assert engine.snapshot(version) == history.shown(version), image.step
        for number in range(max(1, upper - NUMBERS + 1), upper + 1):
            assert write(engine, history.versions[number - 1], number) == number, image.step
        late = ("key 0", 99, "bid", 0)
        assert engine.commit([(late, 1)]) == upper + 1, image.step
        shown = Counter({row: n for row, n in history.shown(upper).items() if row[0] != "key 0"})
        assert engine.snapshot(upper + 1) == shown + Counter([late]), image.step
    finally:
        engine.close()


def worked(base: Path) -> tuple[CrashPoints, History]:
    """A server's work from its start to its end."""
    root = base / "root"
    root.mkdir()
    with CrashPoints(root, base) as points:
        engine = Engine(root, SCHEMA, LATEST)
        history = History(engine, points)
        work(history)
    engine.close()
    return points, history


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_crash_at_any_step_loses_no_version_and_counts_none_twice(base: Path, thorough: bool) -> None:
    points, history = worked(base)
    assert len(points.images) > 60
    for image in points.of_each_kind(thorough=thorough):
        check(image, history)
        shutil.rmtree(image.path)


def test_a_crash_during_recovery_changes_nothing(base: Path) -> None:
    points, history = worked(base)
    # A run that no row names, and a transaction in an unsynced log.
    unnamed = [
        image for image in points.images if re.search(r"killed after half of write .*\.run", image.step)
    ]
    unsynced = [image for image in points.images if image.step == "killed after writes to records.db-wal"]
    for image in (unnamed[-1], unsynced[-1]):
        with CrashPoints(image.path, image.path.parent / f"{image.path.name}-again") as again:
            again.acknowledged = image.acknowledged
            Engine(image.path, SCHEMA, LATEST).close()
        assert again.images
        for second in again.images:
            check(second, history)
