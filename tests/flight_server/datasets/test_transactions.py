"""What is remembered of writes with a transaction, against a history that forgets nothing."""

from __future__ import annotations

import gc
import sqlite3
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.datasets import Transactions, transactions
from flight_server.memory import Metadata
from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Conflict, OutOfBudget, Transaction
from flight_server.records.tables import TABLES
from flight_server.records.transaction_records import put_transactions, transactions_of
from tests.support.clocks import Clock

DAY = 86_400.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(1000.0 * DAY)
    monkeypatch.setattr(transactions, "time", made)
    return made


def stored(known: Transactions) -> Transactions:
    """What a restart makes of it."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    put_transactions(connection, 1, known.entries(), known.forgotten)
    return Transactions("d", None, *transactions_of(connection, 1))


WRITES = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.integers(0, 12),
        st.none() | st.integers(0, 12),
        st.sampled_from([0.0, 1.0, 40.0]),
        st.booleans(),
    ),
    max_size=60,
)


@given(WRITES)
def test_a_write_is_answered_by_its_own_version_or_committed_once_or_refused(writes: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(1000.0 * DAY)
        patch.setattr(transactions, "time", clock)
        patch.setattr(transactions, "IDS", 2)
        patch.setattr(transactions, "NUMBERS", 3)
        patch.setattr(transactions, "HASHES", 1)
        known = Transactions("d")
        history: dict[tuple[str, int], int] = {}
        last: dict[str, int] = {}
        for name, number, after, days, restarts in writes:
            clock.now += days * DAY
            transaction = Transaction(name, number, after)
            try:
                version = known.find(transaction)
                if version is None:
                    known.check_after(transaction)
            except Conflict:
                continue
            if version is not None:
                assert history[name, number] == version
                continue
            assert (name, number) not in history
            assert number > last.get(name, -1)
            assert after is None or last[name] == after
            history[name, number] = len(history) + 1
            last[name] = number
            known.note((name, number), len(history))
            assert len(known.entries()) <= 2
            if restarts:
                known = stored(known)


def refusal(known: Transactions, name: str, number: int, after: int | None = None) -> str:
    transaction = Transaction(name, number, after)
    try:
        assert known.find(transaction) is None
        known.check_after(transaction)
    except Conflict as refused:
        return refused.message
    pytest.fail(f"{transaction} is taken")


def test_each_refusal_says_why_and_what_to_do() -> None:
    known = Transactions("d")
    for number in range(0, 40, 2):
        known.note(("job", number), number + 1)
    assert known.find(Transaction("job", 30)) == 31
    assert "number 31 of transaction id 'job' was never committed, and 38 was" in refusal(known, "job", 31)
    for number in (22, 21, 0):
        assert f"number {number} of transaction id 'job' may have been committed" in refusal(
            known, "job", number
        )
    assert "the dataset has those up to 38. Write again what is missing" in refusal(known, "job", 41, 40)
    assert "38 was committed since: two writers use this id" in refusal(known, "job", 40, 36)
    assert "has had no write with this id since it was created" in refusal(known, "other", 7, 6)
    assert "was overwritten since" in refusal(Transactions("d").replacing(known), "job", 39, 38)
    assert Transactions("d").replacing(known).find(Transaction("job", 38)) is not None


def test_many_ids_are_remembered_and_forgotten_by_age(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "HASHES", 2)
    monkeypatch.setattr(transactions, "IDS", 500)
    known = Transactions("d")
    known.note(("emitter", 1), 1)
    known.keep("emitter")
    for number in range(transactions.IDS - 1):
        known.note((f"job {number}", 7), number + 2)
    clock.now += transactions.DAYS * DAY - 1
    assert "500 others were used in the last 30 days" in refusal(known, "new", 0)
    known.note(("job 0", 8), 20_000)
    clock.now += 2
    for name in ("new", "newer"):
        assert known.find(Transaction(name, 0)) is None
        known.note((name, 0), 20_001)
    assert len(known.entries()) == transactions.IDS
    for name in ("job 1", "job 2"):
        for after in (None, 7):
            assert "was not used for 30 days, and was forgotten" in refusal(known, name, 8, after)
            assert "was not used for 30 days, and was forgotten" in refusal(stored(known), name, 8, after)
    assert known.find(Transaction("job 0", 7)) == 2
    assert known.find(Transaction("emitter", 1)) == 1
    assert "as many were forgotten as can be told from new ones" in refusal(known, "newest", 0)


def test_a_restart_at_full_tables_refuses_what_was_refused_before(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "IDS", 500)
    known = Transactions("d")
    for number in range(transactions.IDS):
        known.note((f"job {number}", number), 1, clock.now)
    assert stored(known).entries() == known.entries()
    assert "others were used" in refusal(stored(known), "new", 0)


def test_the_bytes_of_ids_are_reserved_and_a_new_one_is_refused_without_room() -> None:
    pool = MemoryPool(2 * transactions.ID_BYTES, "metadata")
    known = Transactions("d", Metadata(pool))
    for name in ("a", "b"):
        assert known.find(Transaction(name, 0)) is None
        known.note((name, 0), 1)
    assert pool.used_bytes == 2 * transactions.ID_BYTES
    with pytest.raises(OutOfBudget, match="another transaction id of 'd'"):
        known.find(Transaction("c", 0))
    assert known.find(Transaction("a", 1)) is None
    known.begin(Transaction("a", 1))
    assert pool.used_bytes == transactions.ID_BYTES
    del known
    assert pool.used_bytes == 0


def test_an_id_takes_no_more_than_is_reserved_for_it() -> None:
    ids = 700  # a dict has just grown
    gc.collect()
    tracemalloc.start()
    try:
        known = Transactions("d")
        before = tracemalloc.get_traced_memory()[0]
        for number in range(transactions.NUMBERS + 1):
            for each in range(ids):
                known.note((f"{each:0100}", 2**52 + number), 2**40 + number * ids + each, 1e9)
        gc.collect()  # also what the interpreter keeps of tuples
        assert (tracemalloc.get_traced_memory()[0] - before) / ids < transactions.ID_BYTES
    finally:
        tracemalloc.stop()
