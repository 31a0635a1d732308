"""Readers that take a slice and then nothing: what they hold, and what they get when they go on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from flight_server.kinds import VersionBurst
from flight_server.kinds.changelog import reads, views
from flight_server.kinds.changelog.reads import STALLED_SECONDS, ChangelogRead
from flight_server.memory import Pace
from flight_server.protocol import Compacted, DatasetDropped, Versions
from flight_server.protocol.ipc_framing import encapsulate
from flight_server.tiering import Reader
from tests.support.background_tasks import idle
from tests.support.changelog_store import NAME, Engine
from tests.support.polling import eventually

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64())])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
KEYS = 100
Row = tuple[int, ...]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SLICE_ROWS", 8)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as made:
        yield made
    vars(made).clear()  # the fixture's value outlives the look for what is left


def put(engine: Engine, at: int) -> None:
    engine.commit([((key, at), 1) for key in range(KEYS)])


def fold(engine: Engine, *, to_file: bool = True) -> None:
    since = engine.changelog.advanced_since(time.monotonic() + 3600)
    if to_file:
        engine.fold(since)
    else:
        engine.publish(engine.begin_fold(since, to_file=False))
    engine.run(idle(engine.background))


async def used_bytes(engine: Engine) -> int:
    """What is reserved once the loop has run."""
    return engine.store.memory.used_bytes


def rows(part: VersionBurst, schema: pa.Schema) -> list[Row]:
    updates: list[Row] = []
    for message in part:
        framed = encapsulate(message.parts.header) + bytes(message.parts.body)
        batch = pa.ipc.read_record_batch(pa.py_buffer(framed), schema)
        updates += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return updates


class Stalled:
    """A reader that takes parts when it is told."""

    def __init__(self, engine: Engine, versions: Versions) -> None:
        self._engine = engine
        reader = Reader(NAME, 0, "test", Pace())
        read = ChangelogRead(engine.store.reads, engine.changelog, versions)
        self._schema = read.schema
        self._parts: AsyncGenerator[Any, None] = read.bursts(reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.run(self._parts.aclose())

    def take(self) -> list[Row]:
        return rows(self._engine.run(anext(self._parts)), self._schema)

    def rest(self) -> list[Row]:
        async def all_parts() -> list[Row]:
            return [row async for part in self._parts for row in rows(part, self._schema)]

        return list(self._engine.run(all_parts()))


def test_stalled_readers_of_snapshots_hold_no_memory_runs_and_read_their_version_to_the_end(
    engine: Engine,
) -> None:
    with ExitStack() as stack:
        readers, begun = [], []
        for version in range(1, 6):
            put(engine, version)
            readers.append(stack.enter_context(Stalled(engine, Versions())))
            begun.append(readers[-1].take())
        assert all(0 < len(part) < KEYS for part in begun)
        assert engine.store.memory.used_bytes > 0
        fold(engine)
        # A reader may have a thread read its next part, which holds a run until the loop takes that part.
        eventually(lambda: engine.run(used_bytes(engine)), 0)
        put(engine, 6)
        fold(engine)
        assert engine.changelog.since == 1
        for version, (reader, part) in enumerate(zip(readers, begun, strict=True), 1):
            assert Counter(part + reader.rest()) == Counter((key, version) for key in range(KEYS))
    fold(engine)
    assert (engine.changelog.since, engine.changelog.rows) == (6, KEYS)


def test_a_reader_whose_transport_takes_nothing_for_ten_minutes_holds_its_version_no_more(
    engine: Engine,
) -> None:
    put(engine, 1)
    with Stalled(engine, Versions()) as stalled:
        stalled.take()
        put(engine, 2)
        holds = engine.changelog.holds
        assert holds.expire(time.monotonic() + STALLED_SECONDS - 10, 2) == []
        assert holds.oldest() == 1
        assert holds.expire(time.monotonic() + STALLED_SECONDS, 2) == ["a follower"]
        fold(engine)
        with pytest.raises(Compacted, match="version 1 was compacted"):
            stalled.take()


def test_a_reader_that_goes_on_before_compaction_holds_its_version_again(engine: Engine) -> None:
    put(engine, 1)
    with Stalled(engine, Versions()) as stalled:
        begun = stalled.take()
        put(engine, 2)
        assert engine.changelog.holds.expire(time.monotonic() + STALLED_SECONDS, 2) == ["a follower"]
        begun += stalled.take()
        fold(engine)
        assert engine.changelog.since == 1
        assert Counter(begun + stalled.rest()) == Counter((key, 1) for key in range(KEYS))


def test_deltas_that_become_few_while_they_are_read_in_parts_come_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = 3
    monkeypatch.setattr(reads, "FEW_ROWS", versions * KEYS - 1)  # one of each run and key
    for version in range(1, versions + 1):
        put(engine, version)
    with Stalled(engine, Versions(after=versions - 1)) as reader:
        updates = reader.take()
        assert 0 < len(updates) < 2 * KEYS
        fold(engine, to_file=False)
        assert engine.changelog.rows == 2 * KEYS
        updates += reader.rest()
    changes = ((key, versions - less, 1 - 2 * less) for key in range(KEYS) for less in (0, 1))
    assert Counter(updates) == Counter(changes)


def test_what_is_committed_while_a_follower_is_sent_a_step_is_its_next_one(engine: Engine) -> None:
    put(engine, 1)
    with Stalled(engine, Versions(after=0, follow=True)) as follower:
        updates = follower.take()
        put(engine, 2)
        while len(updates) < 3 * KEYS:
            updates += follower.take()
    changes = Counter((key, 1, -1) for key in range(KEYS))
    changes.update((key, version, 1) for key in range(KEYS) for version in (1, 2))
    assert Counter(updates) == changes


def test_reads_of_a_dropped_changelog_end_when_memory_is_short(engine: Engine) -> None:
    put(engine, 1)
    with Stalled(engine, Versions()) as stalled, Stalled(engine, Versions()) as other:
        begun = stalled.take()
        other.take()
        engine.run(engine.catalogue.remove(NAME))
        engine.store.expire_holds()
        assert len(begun + stalled.rest()) == KEYS
        assert engine.store.memory.used_bytes > 0
        engine.store.short()
        with pytest.raises(DatasetDropped):
            other.take()
    eventually(lambda: engine.store.memory.used_bytes, 0)  # a thread may still hold the last slice
    engine.run(engine.disk.disposal.wait_idle())


def test_a_row_that_is_there_many_times_is_read_in_parts_while_it_is_folded(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, None)) as engine:
        engine.commit([((key, 0), key) for key in range(1, 30)])
        engine.commit([((key, 0), 1) for key in range(1, 30)])
        with Stalled(engine, Versions()) as reader:
            updates = reader.take()
            fold(engine)
            updates += reader.rest()
        assert Counter(updates) == Counter({(key, 0): key + 1 for key in range(1, 30)})


def test_followers_that_ask_at_a_time_share_a_small_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[int]()
    few_deltas = views.View.few_deltas

    def counted(view: views.View, after: int, *limits: int) -> views.ViewPart | None:
        made.append(after)
        return few_deltas(view, after, *limits)

    monkeypatch.setattr(views.View, "few_deltas", counted)
    put(engine, 1)
    read = ChangelogRead(engine.store.reads, engine.changelog, Versions(after=1, follow=True))
    streams = [read.bursts(Reader(NAME, 0, f"follower {number}", Pace())) for number in range(3)]
    steps = [engine.loop.create_task(anext(stream)) for stream in streams]
    engine.run(asyncio.sleep(0))  # all wait for a version
    for version in (2, 3):
        put(engine, version)
        bursts = engine.run(asyncio.gather(*steps))
        assert [sum(message.rows for message in burst) for burst in bursts] == [2 * KEYS] * 3
        steps = [engine.loop.create_task(anext(stream)) for stream in streams]
        engine.run(asyncio.sleep(0))
    assert made == [1, 2]
    assert not engine.store.reads.steps
    for step, stream in zip(steps, streams, strict=True):
        step.cancel()
        engine.run(asyncio.gather(step, return_exceptions=True))
        engine.run(stream.aclose())


def test_the_loop_passes_once_between_a_producers_answer_and_the_step_of_a_follower(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the answer is sent before: uvloop writes at the end of a pass."""
    events = list[str]()
    few_deltas = views.View.few_deltas

    def noted(view: views.View, after: int, *limits: int) -> views.ViewPart | None:
        events.append("step")
        return few_deltas(view, after, *limits)

    async def produce_and_follow() -> None:
        step = asyncio.create_task(anext(stream))
        write = engine.store.write(engine.catalogue.find(NAME))
        batch = pa.RecordBatch.from_pylist([{"key": 1, "time": 2}], SCHEMA)
        await write.add(batch, engine.catalogue.budget.frames.reserve(batch.nbytes))
        await write.commit()
        engine.loop.call_soon(events.append, "end of the pass")
        await step
        await stream.aclose()

    monkeypatch.setattr(views.View, "few_deltas", noted)
    put(engine, 1)
    stream = ChangelogRead(engine.store.reads, engine.changelog, Versions(after=1, follow=True)).bursts(
        Reader(NAME, 0, "follower", Pace())
    )
    engine.run(produce_and_follow())
    assert events == ["end of the pass", "step"]
