"""The compactor on a real changelog: what it leaves on disk and in memory, at a clock that the test moves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.kinds.changelog import changelog, commits, compaction, compactor, planning, views
from flight_server.kinds.changelog.changelog import Changelog
from flight_server.kinds.changelog.compaction import Work
from flight_server.kinds.changelog.runs import RunFile, Updates
from flight_server.storage import Folder
from tests.support.changelog_store import Engine
from tests.support.clocks import Clock

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64())])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.now = time.monotonic()
    for module in (commits, compactor, changelog):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 40)
    monkeypatch.setattr(views, "SLICE_ROWS", 40)


def put(engine: Engine, keys: range, number: int, diff: int = 1) -> None:
    engine.commit([((key, number), diff) for key in keys])


def look(engine: Engine) -> None:
    engine.run(engine.store.compactor.look_at_next())


def pass_time(engine: Engine, clock: Clock, seconds: float) -> None:
    end = clock.now + seconds
    while (due_in := engine.store.compactor.due_in()) is not None and clock.now + due_in <= end:
        if due_in > 0:
            clock.now += max(due_in, 1e-6)
        else:
            look(engine)
    clock.now = max(clock.now, end)


def test_rows_in_the_records_become_one_file_however_many_commits_come_meanwhile(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    make = Folder.make

    def counted(self: Folder, suffix: Any) -> Any:
        path, fd = make(self, suffix)
        made.append(path)
        return path, fd

    monkeypatch.setattr(Folder, "make", counted)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        records_bytes = 16 << 10
        monkeypatch.setattr(planning, "RECORDS_BYTES", records_bytes)
        changelog, entry_bytes, most = engine.changelog, 0, 0
        for number in range(120):
            work_begins = engine.loop.create_task(engine.store.compactor.look_at_next()) if number else None
            put(engine, range(10 * number, 10 * number + 10), number)
            entry_bytes = entry_bytes or changelog.records.size_bytes
            if work_begins is not None:
                engine.run(work_begins)
            most = max(most, changelog.records.size_bytes)
        written = 120 * entry_bytes
        assert written > 4 * records_bytes
        assert len(made) <= 3 * written // records_bytes, "a file for so many bytes, and rewrites of these"
        assert most <= 3 * records_bytes
        assert sum(engine.snapshot(changelog.upper).values()) == 1200


def test_a_burst_in_files_is_compacted_while_rows_trickle_in_and_after_a_restart(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(planning, "MEMORY_ROWS", 100)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for number in range(10):
            put(engine, range(120), number)
        for number in range(10, 40):
            put(engine, range(1), number)
            pass_time(engine, clock, 0.1)
        assert 120 <= engine.changelog.rows <= 2 * 120
        put(engine, range(120), 40)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        (range_,) = engine.changelog.contents.bases.ranges
        assert isinstance(range_.base, RunFile)
        assert range_.since > 0, "a restart knows what was folded"
        clock.now = max(clock.now, time.monotonic())
        engine.changelog.wake()
        pass_time(engine, clock, 30.0)
        assert engine.changelog.rows == 120


def test_a_quiet_changelog_is_small_on_disk_and_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for number in range(50):
            put(engine, range(1), number)
            pass_time(engine, clock, 0.1)
        pass_time(engine, clock, 30.0)
        assert (engine.changelog.rows, engine.changelog.records.size_bytes) == (1, 0)
        assert engine.changelog.disk_bytes < 2 << 10
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert engine.changelog.rows == 1
        assert sum(engine.snapshot(50).values()) == 1


def test_commits_that_follow_each_other_are_looked_at_once(tmp_path: Path, clock: Clock) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        looks = engine.store.compactor
        pass_time(engine, clock, 10.0)
        for number in range(3):
            put(engine, range(10), number)
            assert looks.due_in() == pytest.approx(compactor.SOON_SECONDS - number / 1000)
            clock.now += 0.001
        clock.now += compactor.SOON_SECONDS
        assert looks.due_in() == 0.0
        look(engine)
        due_in = looks.due_in()
        assert due_in is not None
        assert due_in > compactor.SOON_SECONDS, "when the rows are old"
        put(engine, range(10), 3)
        engine.changelog.wake()
        assert looks.due_in() == 0.0


def test_two_duties_never_do_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: Counter[Work] = Counter()
    most = 0

    async def work(changelog: Changelog, going: Work) -> None:
        del changelog
        nonlocal most
        inside[going] += 1
        most = max(most, inside[going])
        for _ in range(1 if going.in_memory else 10):
            await asyncio.sleep(0)
        inside[going] -= 1

    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        duties, changelog = engine.store.compactor, engine.changelog
        monkeypatch.setattr(duties, "_work", work)
        put(engine, range(1), 1)
        changelog.working += [
            engine.begin_fold(0, to_file=True),
            engine.begin_rewrite(changelog.contents.recent, to_file=False),
        ]

        async def both() -> None:
            await asyncio.gather(duties.look(changelog), duties.look(changelog))

        engine.run(both())
        assert len(inside) == 2
        assert most == 1
        duties.abandon(changelog)


@pytest.mark.parametrize("error", [pa.ArrowMemoryError, ValueError])
@pytest.mark.parametrize("to_file", [False, True])
def test_work_that_failed_is_given_up_and_loses_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], to_file: bool
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for version in range(5):
            put(engine, range(10 * version, 10 * version + 10), version)
        shown = engine.snapshot(5)
        with monkeypatch.context() as patch:

            def failing(updates: Updates) -> Updates:
                raise error("no room")

            patch.setattr(compaction, "added_up", failing)
            engine.begin_rewrite(engine.changelog.contents.recent, to_file=to_file)
            with suppress(ValueError):  # a duty says what it does not know, and goes on
                engine.run(engine.store.compactor.look(engine.changelog))
        assert not engine.changelog.working
        assert engine.snapshot(5) == shown
        engine.fold()
        assert engine.snapshot(5) == shown


def test_quiet_rows_become_one_file_also_while_memory_is_short(tmp_path: Path, clock: Clock) -> None:
    with closing(Engine(tmp_path, SCHEMA, None)) as engine:
        put(engine, range(20_000), 1)
        shown = engine.snapshot(1)
        assert engine.changelog.records.size_bytes > planning.BASE_BYTES // 4
        engine.changelog.wake()
        pass_time(engine, clock, 0.1)
        room = engine.store.memory.reserve(engine.store.memory.limit_bytes or 0)  # of other changelogs
        pass_time(engine, clock, 60)
        room.free()
        assert engine.snapshot(1) == shown
        assert [run.rows for run in engine.changelog.contents.runs] == [20_000]


def test_the_base_of_an_idle_changelog_leaves_memory_when_that_is_short(tmp_path: Path, clock: Clock) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        put(engine, range(100), 1)
        pass_time(engine, clock, 30.0)
        assert engine.changelog.contents.bases.in_memory
        assert not engine.changelog.contents.recent
        limit_bytes = engine.store.memory.limit_bytes or 0
        room = engine.store.memory.reserve(limit_bytes)  # of other changelogs
        engine.store.short()
        pass_time(engine, clock, 1.0)
        assert isinstance(engine.changelog.contents.bases.ranges[0].base, RunFile)
        room.shrink(limit_bytes // 4)
        put(engine, range(100), 2)
        pass_time(engine, clock, 30.0)
        assert not engine.changelog.contents.bases.in_memory, "not while memory is more than half full"
        room.free()
        put(engine, range(100), 3)
        pass_time(engine, clock, 30.0)
        assert engine.changelog.contents.bases.in_memory


@pytest.mark.parametrize("held", [None, 2])
def test_a_fold_in_memory_has_all_commits_that_it_says_to_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int | None
) -> None:
    """A retraction is written while the fold waits to begin."""
    monkeypatch.setattr(planning, "FILE_ROWS", 1)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        changelog, rows = engine.changelog, SCHEMA.append(pa.field("_diff", pa.int64()))
        if held is not None:
            changelog.holds.follow("reader", held)
        for number in (1, 2):
            put(engine, range(1), number)

        async def both() -> None:
            retraction = pa.RecordBatch.from_pylist([{"key": 0, "time": 2, "_diff": -1}], rows)
            committing = asyncio.ensure_future(engine._commit(retraction, None))
            while not changelog.turn.locked():  # noqa: ASYNC110  # it takes some passes of the loop
                await asyncio.sleep(0)
            await engine.store.compactor.look(changelog)
            assert await committing == 3

        engine.run(both())
        before = {version: engine.snapshot(version) for version in range(changelog.since, 4)}
        for going in list(changelog.working):
            engine.publish(going)
        assert {version: engine.snapshot(version) for version in before} == before
        assert held is None or before[3] == {(0, 1): 1}
