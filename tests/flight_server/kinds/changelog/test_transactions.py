"""Puts with a transaction into a changelog: at once, in any order, and after restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_server.protocol import Conflict, Transaction
from tests.support.changelog_store import NAME, Engine
from tests.support.keep_model import SCHEMA


async def put(engine: Engine, transaction: Transaction) -> int | str:
    """The version; or how the put is refused."""
    row = {"key": transaction.id, "time": transaction.version, "kind": "bid", "value": 0}
    rows = pa.RecordBatch.from_pylist([row], SCHEMA)
    write = engine.store.write(engine.catalogue.find(NAME))
    try:
        await write.add(rows, engine.catalogue.budget.frames.reserve(rows.nbytes))
        return await write.commit(transaction)
    except Conflict as refused:
        return refused.message
    finally:
        write.abort()


def at_once(engine: Engine, *transactions: Transaction) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(put(engine, each) for each in transactions))

    found: list[Any] = engine.run(all_of_them())
    return found


def test_puts_of_one_id_at_once_are_each_committed_once_or_refused(base: Path) -> None:
    engine = Engine(base, SCHEMA, None)
    said = at_once(
        engine,
        *(Transaction("a", number) for number in (1, 1, 9, 5, 9, 1)),
        Transaction("b", 1),
        Transaction("a", 10, 9),
        Transaction("a", 10, 9),
        Transaction("a", 12, 11),
    )
    made = {"a 1": said[0], "a 9": said[2], "b 1": said[6], "a 10": said[7]}
    assert sorted(made.values()) == [1, 2, 3, 4]
    assert (said[1], said[5], said[4], said[8]) == (made["a 1"], made["a 1"], made["a 9"], made["a 10"])
    assert "number 5 of transaction id 'a' was never committed" in said[3]
    assert "is to follow 11, and the dataset has those up to 10" in said[9]
    assert engine.snapshot(4).total() == 4
    engine.close()


def test_transactions_are_remembered_after_a_restart(base: Path) -> None:
    engine = Engine(base, SCHEMA, None)
    for number in range(3):
        at_once(engine, Transaction("a", number), Transaction("b", number))
    entries = {name: entry[1:] for name, entry in engine.changelog.transactions.entries().items()}
    for _ in range(2):
        engine.close()
        engine = Engine(base, SCHEMA, None)
        assert engine.disk.quarantine.entries == []
        found = engine.changelog.transactions.entries()
        assert {name: entry[1:] for name, entry in found.items()} == entries
    engine.close()
