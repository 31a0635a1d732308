"""Rules of users' own: what is put is tested before it is committed, and a slow one delays no other changelog."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog import Changelog, ChangelogState, writes
from flight_server.kinds.changelog.journal import numbered
from flight_server.kinds.changelog.merges import Merge
from flight_server.kinds.changelog.planning import Plan
from flight_server.kinds.changelog.rules import Kept, QueryProcesses
from flight_server.memory import Pace
from flight_server.protocol import (
    CreateRequest,
    InvalidRequest,
    KeepRule,
    Kind,
    Transaction,
    Versions,
)
from flight_server.tiering import Reader
from tests.support.changelog_store import NAME, Engine
from tests.support.polling import eventually
from tests.support.ram_directory import ram_directory

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
COUNTS = "select k, count(*) as n from input group by k"
# A text that is no number cannot be cast.
NUMBERS = "select k, max(n) as n from input where k::bigint >= 0 group by k"
SUMS = "select k, sum(n)::bigint as n from input group by k"


def keep(query: str) -> dict[str, Any]:
    return {"rule": "sql", "query": query, "key": ["k"]}


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []
    with ram_directory() as path:

        def make(query: str, directory: Path = path) -> Engine:
            made.append(Engine(directory, SCHEMA, keep(query)))
            return made[-1]

        yield make
        for engine in made:
            engine.close()
            vars(engine).clear()  # the fixture's value outlives the look for what is left


def rows(*values: tuple[str, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "n": n} for k, n in values], SCHEMA)


def put(engine: Engine, batch: pa.RecordBatch, name: str = NAME) -> Awaitable[Any]:
    async def commit() -> Any:
        write = engine.store.write(engine.catalogue.find(name))
        try:
            await write.add(batch, engine.catalogue.budget.frames.reserve(batch.nbytes))
            return await write.commit()
        finally:
            write.abort()

    return commit()


def create(engine: Engine, name: str, rule: dict[str, Any]) -> Awaitable[Any]:
    text = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    request = CreateRequest(name, Kind.CHANGELOG, schema=text, keep=KeepRule.parse(rule), delay_seconds=0.0)
    return engine.store.create(request, SchemaMessage.of(SCHEMA))


async def read(engine: Engine, changelog: Changelog) -> int:
    reader = Reader(changelog.name, 0, "reader", Pace())
    return sum([len(part) async for part in engine.store.reads.read(changelog, reader, Versions())])


def test_a_query_that_counts_rows_is_found_out_when_each_row_comes_in_a_put_of_its_own(
    engines: Callable[..., Engine],
) -> None:
    engine = engines(COUNTS)
    for number in range(40):
        engine.commit([((f"key {number}", 1), 1)])
    with pytest.raises(
        InvalidRequest, match=rf"^dataset '{NAME}': the rule's query 'select k, .* is not idempotent"
    ):
        engine.commit([(("key 7", 1), 1)])
    assert engine.changelog.upper == 40
    assert engine.snapshot(40)["key 7", 1] == 1
    engine.commit([(("another", 1), 1)])


def test_a_row_on_which_the_query_fails_is_refused_alone_with_its_name(
    engines: Callable[..., Engine],
) -> None:
    engine = engines(NUMBERS)

    async def at_once() -> list[Any]:
        puts = [rows(("1", 1)), rows(("2", 2), ("x", 3)), rows(("3", 4))]
        return await asyncio.gather(*(put(engine, each) for each in puts), return_exceptions=True)

    first, refused, third = engine.run(at_once())
    assert {first.version, third.version} == {1, 2}
    assert isinstance(refused, InvalidRequest)
    assert refused.message.startswith(f"dataset '{NAME}': the rule's query 'select k, max(n)")
    assert "Could not convert string 'x' to INT64" in refused.message
    assert "It fails on the row {'k': 'x', 'n': 3}, and nothing of the put was kept" in refused.message
    assert engine.snapshot(2) == {("1", 1): 1, ("3", 4): 1}


def test_a_large_put_with_such_a_row_is_refused_and_leaves_no_file(
    engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "CHUNK_ROWS", 10)
    engine = engines(NUMBERS)

    async def in_two() -> None:
        write = engine.store.write(engine.catalogue.find(NAME))
        try:
            for batch in (rows(*((str(n), n) for n in range(20))), rows(*(("y", n) for n in range(20)))):
                await write.add(batch, engine.catalogue.budget.frames.reserve(batch.nbytes))
            await write.commit()
        finally:
            write.abort()

    with pytest.raises(InvalidRequest, match=r"It fails on the row \{'k': 'y'"):
        engine.run(in_two())
    eventually(lambda: len(numbered(engine.changelog.directory)[1]), 0)
    assert engine.changelog.upper == 0


def test_a_retraction_is_never_refused_and_repairs_what_fails_only_together(
    engines: Callable[..., Engine],
) -> None:
    engine = engines(SUMS)
    for number in (1, 2, 2**63 - 1):
        engine.commit([(("x", number), 1)])
    with pytest.raises(InvalidRequest, match=rf"dataset '{NAME}': .* Conversion Error.*; retract the rows"):
        engine.run(read(engine, engine.changelog))
    engine.commit([(("x", 2), -1), (("never put", 1), -1)])
    engine.commit([(("x", 1), -1)])
    assert engine.snapshot(5) == {("x", 2**63 - 1): 1}
    for _ in range(8):
        engine.commit([(("y", 2**62), 1)])
        engine.commit([(("y", 2**62), -1)])


def test_a_put_that_comes_again_is_not_tested_again(engines: Callable[..., Engine]) -> None:
    engine = engines(COUNTS)
    first = engine.commit([(("a", 1), 1)], Transaction("writer", 1))
    assert engine.commit([(("a", 1), 1)], Transaction("writer", 1)) == first


def test_a_start_runs_no_query(engines: Callable[..., Engine]) -> None:
    engine = engines(NUMBERS)
    engine.commit([(("1", 1), 1)])
    directory = engine.directory
    again = engines(NUMBERS, directory)
    assert len(again.store.queries) == 0
    assert again.changelog.state is ChangelogState.OPEN
    assert again.snapshot(1) == {("1", 1): 1}


def test_a_slow_rule_delays_no_other_changelog(
    engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    gate.set()

    def ask(_: QueryProcesses, work: Any, spec: KeepRule, schema: pa.Schema, given: Kept) -> Kept:
        if spec.query == "from input -- slow":
            gate.wait()
        return given

    monkeypatch.setattr(QueryProcesses, "ask", ask)
    engine = engines("from input -- slow")
    others = {"plain": {"rule": "latest", "key": ["k"], "order_by": ["n"]}, "quick": keep("from input")}
    for name, rule in others.items():
        engine.run(create(engine, name, rule))
    slow = engine.changelog
    for name in (NAME, *others):
        engine.run(put(engine, rows(("a", 1)), name))

    def merge(changelog: Changelog) -> None:
        Merge(changelog, Plan(changelog.runs, to_file=False), changelog.upper)
        engine.store.compactor.poke(changelog)

    async def both() -> None:
        compactor = asyncio.create_task(engine.store.compactor.run())
        gate.clear()
        merge(slow)
        waiting = [
            *(asyncio.create_task(read(engine, slow)) for _ in range(5)),
            asyncio.ensure_future(put(engine, rows(("b", 1)))),
            asyncio.ensure_future(put(engine, rows(("c", 1)))),
            *(
                asyncio.ensure_future(create(engine, f"new {n}", keep("from input -- slow")))
                for n in range(5)
            ),
        ]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):  # so that the gate is opened if they do wait
            for name in others:
                changelog = engine.store.of(engine.catalogue.find(name))
                await put(engine, rows(("b", 1)), name)
                assert await read(engine, changelog) == 1
                merge(changelog)
                while changelog.merge is not None:
                    await changelog.changes.next()
        assert not [task for task in waiting if task.done()]
        assert slow.merge is not None
        gate.set()
        await asyncio.gather(*waiting)
        while slow.merge is not None:
            await slow.changes.next()
        compactor.cancel()
        await asyncio.wait([compactor])

    try:
        engine.run(both())
    finally:
        gate.set()


def test_a_put_that_was_given_up_is_not_tested(
    engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun, tested = threading.Event(), threading.Event(), list[str]()

    def ask(_: QueryProcesses, __: Any, ___: KeepRule, ____: pa.Schema, given: Kept) -> Kept:
        tested.extend(given.rows.column("k").to_pylist())
        if tested == ["a"]:
            begun.set()
            gate.wait()
        return given

    monkeypatch.setattr(QueryProcesses, "ask", ask)
    engine = engines("from input")

    async def three() -> None:
        first = asyncio.ensure_future(put(engine, rows(("a", 1))))
        await asyncio.to_thread(begun.wait)
        given_up, third = (asyncio.ensure_future(put(engine, rows((k, 1)))) for k in ("given up", "c"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        gate.set()
        await asyncio.gather(first, third)

    engine.run(three())
    assert set(tested) == {"a", "c"}
    assert engine.snapshot(2) == {("a", 1): 1, ("c", 1): 1}


def test_rows_that_were_deleted_are_not_tested_together_with_later_ones(
    engines: Callable[..., Engine],
) -> None:
    engine, greatest = engines(SUMS), (1 << 63) - 1
    for version in (1, 3, 5):
        engine.commit([(("a", greatest), 1)])  # two of them have no sum
        assert engine.snapshot(version) == {("a", greatest): 1}
        engine.delete([("a",)])


def test_what_is_only_retracted_is_not_gathered_until_a_row_is_put(engines: Callable[..., Engine]) -> None:
    engine = engines(SUMS)
    for number in range(10):
        engine.commit([(("a", number), -1)])
    assert engine.changelog.checks is not None
    checks = engine.changelog.checks
    eventually(lambda: len(checks._removed), 0)
