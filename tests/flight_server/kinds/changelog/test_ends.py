"""Changelogs that are dropped, replaced, or created again while commits, folds and readers are at work."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog import commits, views, writes
from flight_server.kinds.changelog.changelog import ChangelogState
from flight_server.kinds.changelog.reads import ChangelogRead
from flight_server.kinds.changelog.runs import run_files
from flight_server.memory import Pace
from flight_server.protocol import (
    CreateRequest,
    DatasetDropped,
    FlightShuffleError,
    Kind,
    NotFound,
    OutOfBudget,
    Transaction,
    Unavailable,
    Versions,
)
from flight_server.records import RecordGone, changelog_records, changelogs, delete
from flight_server.storage.folder import SEGMENTS_NAME
from flight_server.tiering import Reader
from tests.support.background_tasks import idle
from tests.support.catalogues import expired
from tests.support.changelog_store import NAME, Engine
from tests.support.keep_model import SCHEMA
from tests.support.polling import eventually
from tests.support.ram_directory import ram_directory

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 8)
    monkeypatch.setattr(views, "SLICE_ROWS", 8)
    monkeypatch.setattr(run_files, "BLOCK_ROWS", 16)
    monkeypatch.setattr(writes, "CHUNK_ROWS", 20)
    with ram_directory() as path:
        made = Engine(path, SCHEMA, LATEST)
        yield made
        made.close()
        vars(made).clear()  # the fixture's value outlives the look for what is left


def copy_of(engine: Engine) -> Path:
    """In the directory, so that it is deleted with it."""
    return engine.copy_to(engine.directory / "copy")


def run_files_of(engine: Engine) -> int:
    """How many there are."""
    return len(list((engine.directory / SEGMENTS_NAME).iterdir()))


def run_files_left(engine: Engine) -> int:
    """How many are left when nothing of the test refers to them."""
    gc.collect()
    return run_files_of(engine)


def rows(engine: Engine) -> int:
    """How many changelogs the next start would find."""
    return len(list(engine.catalogue.records.read(lambda connection: list(changelogs(connection)))))


def batch(count: int, time_: int) -> pa.RecordBatch:
    rows = [{"key": f"key {n}", "time": time_, "kind": "bid", "value": n} for n in range(count)]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


async def commit(engine: Engine, count: int, time_: int, transaction: Transaction | None = None) -> int:
    write = engine.store.write(engine.catalogue.find(NAME))
    try:
        rows = batch(count, time_)
        await write.add(rows, engine.catalogue.budget.frames.reserve(rows.nbytes))
        return await write.commit(transaction)
    except BaseException:
        write.abort()
        raise


async def read(engine: Engine, versions: Versions) -> AsyncIterator[int]:
    reader = Reader(NAME, 0, "test", Pace())
    async for part in ChangelogRead(engine.store.reads, engine.changelog, versions).bursts(reader):
        yield len(part)


async def to_the_end(step: asyncio.Future[int], more: AsyncIterator[int]) -> None:
    await step
    async for _ in more:
        pass


async def create(engine: Engine) -> None:
    text = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    await engine.store.create(
        CreateRequest(NAME, Kind.CHANGELOG, schema=text, delay_seconds=0.0), SchemaMessage.of(SCHEMA)
    )


async def drop(engine: Engine) -> None:
    await engine.catalogue.remove(NAME)


async def replace(engine: Engine) -> None:
    request = CreateRequest(NAME, Kind.STREAM)
    engine.catalogue.install(engine.catalogue.prepare(request, None))
    await engine.catalogue.records.commit(lambda connection: None)


async def expire(engine: Engine) -> None:
    engine.catalogue.clock = time.monotonic
    engine.catalogue.find(NAME).lease_seconds = 1e-9
    while engine.catalogue.get(NAME) is not None:
        expired(engine.catalogue)
        await engine.catalogue.records.commit(lambda connection: None)


@pytest.mark.parametrize("end", [drop, replace, expire])
def test_what_is_at_work_when_a_changelog_ends_gets_a_typed_error_and_leaves_nothing(
    end: Callable[[Engine], Any], engine: Engine
) -> None:
    async def work() -> None:
        for number in range(3):
            await commit(engine, 30, number)
        changelog = engine.changelog
        going = engine.begin_fold(3, to_file=True)
        next(going.steps)
        snapshot, following = read(engine, Versions()), read(engine, Versions(after=3, follow=True))
        assert await anext(snapshot)
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0)
        large = engine.store.write(engine.catalogue.find(NAME))
        rows = batch(30, 9)
        await large.add(rows, engine.catalogue.budget.frames.reserve(rows.nbytes))
        many = [asyncio.ensure_future(commit(engine, 2, 10 + number)) for number in range(20)]
        await asyncio.sleep(0)
        await end(engine)
        assert changelog.state is ChangelogState.CLOSED
        found = await asyncio.gather(*many, return_exceptions=True)
        assert all(isinstance(each, int | FlightShuffleError) for each in found), found
        with pytest.raises(DatasetDropped):
            await to_the_end(waiting, following)
        with pytest.raises(DatasetDropped):
            await large.commit()
        large.abort()
        assert [part async for part in snapshot], "a snapshot that has begun is read to its end"
        await engine.store.compactor.look(changelog)
        assert not changelog.working
        await idle(engine.background)
        with pytest.raises(DatasetDropped):
            await engine.store.compactor.publish(changelog, going)
        for _ in range(2):
            engine.store.expire_holds()
        assert not list(engine.store)

    engine.run(work())
    assert rows(engine) == 0
    eventually(lambda: run_files_left(engine), 0)


def test_a_fold_that_is_published_while_its_changelog_is_dropped_does_not_bring_it_back(
    engine: Engine,
) -> None:
    async def work() -> None:
        await commit(engine, 30, 1)
        changelog = engine.changelog
        going = engine.begin_fold(1, to_file=True)
        for _ in going.steps:
            pass
        row = changelog.records.row
        assert row is not None
        # As the database's thread does before the event loop closes the changelog.
        await engine.catalogue.records.commit(partial(delete, row=row))
        with pytest.raises(RecordGone):
            await engine.store.compactor.publish(changelog, going)
        with pytest.raises(DatasetDropped):
            await commit(engine, 1, 2)
        await drop(engine)
        await engine.store.compactor.look(changelog)

    engine.run(work())
    assert rows(engine) == 0
    eventually(lambda: run_files_left(engine), 0)


def test_a_name_can_be_used_again_at_once_and_has_nothing_of_the_dropped_changelog(engine: Engine) -> None:
    async def work() -> None:
        for number in range(5):
            many = [asyncio.ensure_future(commit(engine, 25, number)) for _ in range(3)]
            await asyncio.sleep(0)
            await drop(engine)
            with pytest.raises(NotFound):
                await commit(engine, 1, 1)
            await create(engine)
            await asyncio.gather(*many, return_exceptions=True)
            assert engine.changelog.upper == 0
            assert await commit(engine, 1, number) == 1

    engine.run(work())
    assert engine.snapshot(1) == {("key 0", 4, "bid", 0): 1}
    engine.store.expire_holds()
    eventually(lambda: run_files_of(engine), 0)


def test_a_put_that_waits_when_the_server_stops_gets_a_retryable_error_and_is_not_there(
    engine: Engine,
) -> None:
    async def work() -> None:
        async with engine.changelog.turn:
            many = [asyncio.ensure_future(commit(engine, 30, number)) for number in range(3)]
            while sum(map(len, engine.store.commits._queues.values())) < 3:  # noqa: ASYNC110  # threads write their files
                await asyncio.sleep(0.001)
            await engine.background.stop()
        for each in many:
            with pytest.raises(Unavailable, match="write it again"):
                await each

    engine.run(work())
    again = Engine(copy_of(engine), SCHEMA, LATEST)
    assert again.changelog.upper == 0
    assert not run_files_of(again)
    again.close()


@pytest.mark.parametrize("count", [2, 30])
def test_a_put_that_is_written_when_the_server_stops_is_answered_and_there_once_after_it_is_repeated(
    count: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, insert = threading.Event(), threading.Event(), changelog_records.put_transactions

    def gated(*arguments: Any) -> int:
        began.set()
        assert go_on.wait(30.0)
        return insert(*arguments)

    once = Transaction("writer", 1)

    async def work() -> None:
        waiting = asyncio.ensure_future(commit(engine, count, 1, once))
        await asyncio.to_thread(began.wait, 30.0)
        stopping = asyncio.ensure_future(engine.background.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert await waiting == 1

    monkeypatch.setattr(changelog_records, "put_transactions", gated)
    engine.run(work())
    again = Engine(copy_of(engine), SCHEMA, LATEST)
    assert again.disk.quarantine.entries == []
    assert again.run(commit(again, count, 1, once)) == again.changelog.upper == 1
    assert sum(again.snapshot(1).values()) == count
    again.close()


def test_files_of_puts_that_are_refused_while_they_wait_are_deleted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MAX_RUNS", -1)
    monkeypatch.setattr(engine.store.commits, "_deadline_seconds", 0.05)
    with pytest.raises(OutOfBudget, match="compaction does not keep up"):
        engine.run(commit(engine, 30, 1))
    eventually(lambda: run_files_of(engine), 0)
