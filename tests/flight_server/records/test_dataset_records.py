"""Rows of datasets: what was inserted is read again, or said to be damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from flight_server.protocol import Retention
from flight_server.records import (
    DamagedRow,
    DatasetRecord,
    DictionaryRecord,
    Facts,
    FileRecord,
    PartitionRecord,
    Quarantined,
    dataset_records,
    datasets,
    delete,
    delete_left,
    index,
    insert,
    leave_name,
    named_files,
)
from flight_server.records.tables import TABLES

FACTS = Facts(
    partition_count=9,
    producers=2,
    retention=Retention().to_json(),
    lease_seconds=2.5,
    accepted={"0": "a"},
    sealed_at=1e9,
    dictionaries=[DictionaryRecord(1, 100, 50, 7, 1)],
    states=[[], [(3, [0])]],
    files=2,
    partitions=2,
    transactions=2,
)
INDICES = [b"of 0", b"of 7"]


def record(name: str = "d", **changes: Any) -> DatasetRecord:
    made = DatasetRecord(
        name,
        "g1",
        "stream",
        FACTS,
        b"schema",
        [FileRecord(f"{name}-a", 200), FileRecord(f"{name}-b", 150)],
        [PartitionRecord(0, 1, 10, 5, 50, 500, 77), PartitionRecord(7, 0, 0, 5, 50, 500, 78)],
        {"id": (1, 0, 2, 1)},
        [1 << 63],
    )
    return replace(made, **changes)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        made.execute("PRAGMA foreign_keys = ON")
        made.executescript(TABLES)
        yield made


def rows(connection: sqlite3.Connection) -> int:
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    counts = (
        connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # names of ours
        for name in names
        if not name.startswith("sqlite_") and name != "server"
    )
    return sum(counts)


def test_what_was_inserted_is_read_again(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_records, "PART_BYTES", 3)
    made = [record(name) for name in ("d", "e")]
    ids = [insert(connection, each, INDICES) for each in made]
    assert list(datasets(connection)) == list(zip(ids, made, strict=True))
    assert [index(connection, ids[1], each) for each in (0, 7)] == INDICES
    with pytest.raises(ValueError, match="missing"):
        index(connection, ids[1], 8)
    assert named_files(connection) == {"d-a", "d-b", "e-a", "e-b"}
    assert named_files(connection, {ids[0]}) == {"e-a", "e-b"}


def test_an_overwrite_takes_the_place_of_a_row_and_no_id_is_used_again(
    connection: sqlite3.Connection,
) -> None:
    first = insert(connection, record(), INDICES)
    count = rows(connection)
    second = insert(connection, record(generation="g2"), INDICES)
    assert rows(connection) == count
    assert second > first
    delete(connection, second)
    assert rows(connection) == 0
    assert insert(connection, record(), INDICES) > second


def test_a_row_without_a_name_has_its_indices_until_it_is_deleted(connection: sqlite3.Connection) -> None:
    left = insert(connection, record(), INDICES)
    leave_name(connection, left)
    new = insert(connection, record(files=[FileRecord("c", 200), FileRecord("e", 150)]), INDICES)
    assert [row for row, _ in datasets(connection)] == [new]
    assert index(connection, left, 7) == b"of 7"
    delete_left(connection)
    assert index(connection, left, 7) is None
    assert index(connection, new, 7) == b"of 7"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE dataset SET facts = replace(facts, '2.5', '3.5') WHERE name = 'd'",
        "UPDATE dataset SET generation = 'g3' WHERE name = 'd'",
        "UPDATE file SET size_bytes = 201 WHERE name = 'd-a'",
        "DELETE FROM file WHERE name = 'd-b'",
        "UPDATE partition SET rows = 51 WHERE dataset = 1 AND number = 7",
        "DELETE FROM partition WHERE dataset = 1 AND number = 0",
        "UPDATE transaction_id SET entry = '[1, 0, 3, 1]' WHERE dataset = 1 AND entry IS NOT NULL",
        "DELETE FROM transaction_id WHERE dataset = 1 AND entry IS NULL",
        "UPDATE partition SET dataset = 2, number = 1 WHERE dataset = 1 AND number = 0",
    ],
)
def test_a_row_that_is_damaged_or_missing_costs_its_dataset_alone(
    connection: sqlite3.Connection, damage: str
) -> None:
    for name in ("d", "e"):
        insert(connection, record(name), INDICES)
    connection.execute(damage)
    (row, damaged), whole = datasets(connection)
    assert isinstance(damaged, Quarantined)
    assert (row, damaged.dataset) == (1, "d")
    assert whole == (2, record("e"))


def test_a_damaged_index_is_not_read(connection: sqlite3.Connection) -> None:
    row = insert(connection, record(), INDICES)
    connection.execute("UPDATE frames SET records = x'00' WHERE partition = 7")
    assert index(connection, row, 0) == b"of 0"
    with pytest.raises(DamagedRow):
        index(connection, row, 7)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../d"},
        {"kind": "none"},
        {"partitions": [PartitionRecord(9, 0, 0, 5, 50, 500, 77), record().partitions[1]]},
        {"partitions": [PartitionRecord(0, 6, 0, 5, 50, 500, 77), record().partitions[1]]},
        {"facts": replace(FACTS, dictionaries=[DictionaryRecord(2, 0, 5, 7, 1)])},
        {"facts": replace(FACTS, dictionaries=[DictionaryRecord(1, 149, 2, 7, 1)])},
        {"facts": replace(FACTS, dictionaries=[DictionaryRecord(0, -1, 2, 7, 1)])},
        {"facts": replace(FACTS, states=[[(3, [1])]])},
        {"facts": replace(FACTS, retention={"years": 1})},
    ],
)
def test_what_does_not_fit_together_is_damage_whatever_its_checksum(
    connection: sqlite3.Connection, changes: dict[str, Any]
) -> None:
    insert(connection, record(**changes), INDICES)
    ((_, damaged),) = datasets(connection)
    assert isinstance(damaged, Quarantined)
