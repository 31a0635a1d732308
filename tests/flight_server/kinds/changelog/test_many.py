"""Thousands of changelogs, most of them idle, in one store."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import time
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog.store import CHANGELOG_BYTES
from flight_server.kinds.changelog.timeline import Timeline
from flight_server.memory import DATASET_BYTES
from flight_server.protocol import CreateRequest, KeepRule, Kind
from tests.support.background_tasks import idle
from tests.support.changelog_store import NAME, Engine
from tests.support.keep_model import SCHEMA
from tests.support.ram_directory import ram_directory

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
MANY = 150


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # the disk is not what this is about
    with ram_directory() as path:
        yield path


async def create(engine: Engine, names: list[str]) -> None:
    text = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    for name in names:
        request = CreateRequest(
            name, Kind.CHANGELOG, schema=text, keep=KeepRule.parse(LATEST), delay_seconds=0.0
        )
        await engine.store.create(request, SchemaMessage.of(SCHEMA))


async def commit(engine: Engine, name: str) -> int:
    write = engine.store.write(engine.catalogue.find(name))
    batch = pa.RecordBatch.from_pylist([{"key": name, "time": 1, "kind": None, "value": 1}], SCHEMA)
    await write.add(batch, engine.catalogue.budget.frames.reserve(batch.nbytes))
    return await write.commit()


async def settle(engine: Engine) -> None:
    """Do what is due of compaction, and let the tasks of commits end."""
    await idle(engine.background)
    compactor = engine.store.compactor
    while (due_in := compactor.due_in()) is not None and due_in < 1.0:
        if due_in:
            await asyncio.sleep(due_in)
        else:
            await compactor.look_at_next()


@pytest.mark.long
def test_an_idle_changelog_costs_little_memory_and_no_task_or_timer(directory: Path) -> None:
    engine = Engine(directory, SCHEMA, LATEST)
    names = [f"many/n{number}" for number in range(MANY)]
    try:
        engine.run(create(engine, ["first"]))
        gc.collect()
        tracemalloc.start()
        before = engine.catalogue.budget.metadata.pool.used_bytes
        engine.run(create(engine, names))
        gc.collect()
        taken_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        counted_bytes = engine.catalogue.budget.metadata.pool.used_bytes - before
        assert taken_bytes <= counted_bytes == MANY * (DATASET_BYTES + CHANGELOG_BYTES)
        engine.run(settle(engine))
        for name in names[:20]:
            assert engine.run(commit(engine, name)) == 1
        engine.run(settle(engine))
        assert not asyncio.all_tasks(engine.loop)
    finally:
        engine.close()
    engine = Engine(directory, SCHEMA, LATEST)
    try:
        assert len(engine.catalogue) == MANY + 2
        assert [changelog.upper for changelog in engine.store if changelog.name in names[:20]] == [1] * 20
        assert engine.run(commit(engine, names[0])) == 2
        assert engine.run(commit(engine, names[-1])) == 1
        assert engine.run(commit(engine, NAME)) == 1
        engine.run(settle(engine))
        assert not asyncio.all_tasks(engine.loop)
    finally:
        engine.close()


def test_a_dropped_changelog_is_not_held_until_its_delay_ends(directory: Path) -> None:
    engine = Engine(directory, SCHEMA, LATEST)
    try:
        dropped = weakref.ref(engine.changelog)
        engine.changelog.delay_seconds = 3600.0
        engine.changelog.timeline = Timeline(3600.0, 0, time.monotonic())
        engine.run(commit(engine, NAME))
        engine.run(settle(engine))
        assert len(engine.store.compactor._entries) == 1
        engine.run(engine.catalogue.remove(NAME))
        engine.run(settle(engine))
        engine.store.expire_holds()
        gc.collect()
        assert dropped() is None
    finally:
        engine.close()
