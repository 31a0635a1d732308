"""Rows with a checksum."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.records import DamagedRow
from flight_server.records.sqlite_connections import connected
from flight_server.records.tables import RecordTable, checksum

TABLE = RecordTable("test", {"id": "INTEGER PRIMARY KEY", "text": "TEXT", "data": "BLOB", "time": "REAL"})
ROWS = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.binary(),
    st.none() | st.floats(allow_nan=False),
)


class Name(StrEnum):
    STREAM = "stream"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connected(tmp_path / "test.db")) as connection:
        connection.execute(TABLE.declaration)
        yield connection


@given(st.lists(ROWS, unique_by=lambda row: row[0]))
def test_rows_come_back_as_they_were_put(rows: list[tuple[Any, ...]]) -> None:
    rows = [(number, *rest) for number, (_, *rest) in enumerate(rows)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(TABLE.declaration)
        TABLE.put(connection, rows)
        assert list(TABLE.rows(connection, "1 ORDER BY id")) == rows


def test_a_negative_zero_is_no_damage(connection: sqlite3.Connection) -> None:
    TABLE.put(connection, [(1, "", b"", -0.0)])
    assert list(TABLE.rows(connection)) == [(1, "", b"", 0.0)]


@given(ROWS, ROWS)
def test_rows_that_differ_have_other_checksums(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert (checksum(one) == checksum(other)) == (repr(one) == repr(other))


def test_values_are_no_other_values_of_another_type() -> None:
    alike: list[tuple[Any, ...]] = [
        (1,),
        (1.0,),
        ("1",),
        (b"1",),
        (None,),
        ("None",),
        ("b'1'",),
        (b"1", b""),
        (b"", b"1"),
        ("1", None),
    ]
    assert len({checksum(row) for row in alike}) == len(alike)


def test_a_row_with_the_key_of_another_takes_its_place(connection: sqlite3.Connection) -> None:
    TABLE.put(connection, [(1, "one", None, None), (2, "two", None, None)])
    TABLE.put(connection, [(1, "another", b"", 1.5)])
    assert list(TABLE.rows(connection)) == [(1, "another", b"", 1.5), (2, "two", None, None)]


@pytest.mark.parametrize(
    "row", [(True, "", b"", 1.0), (1, "", b"", 1), (1, b"", b"", 1.0), (1, Name.STREAM, b"", 1.0)]
)
def test_a_value_that_sqlite_would_convert_is_refused(
    connection: sqlite3.Connection, row: tuple[Any, ...]
) -> None:
    with pytest.raises(TypeError, match=r"test\.\w+ takes no (bool|int|bytes|Name)"):
        TABLE.put(connection, [row])
    assert list(TABLE.rows(connection)) == []


@pytest.mark.parametrize(
    "change",
    [
        "id = 7",
        "text = 'b'",
        "text = CAST(x'ff61' AS TEXT)",
        "text = NULL",
        "data = x'00'",
        "time = 2",
        "crc32c = 1",
    ],
)
def test_a_damaged_row_is_named_and_the_others_are_read(connection: sqlite3.Connection, change: str) -> None:
    TABLE.put(connection, [(number, "a", b"", 1.0) for number in (1, 2, 3)])
    connection.execute(f"UPDATE test SET {change} WHERE id = 2")
    read = list(TABLE.scan(connection))
    (damaged,) = (row for row in read if isinstance(row, DamagedRow))
    assert str(damaged) == "a row of table 'test' has another checksum"
    assert [row for row in read if row is not damaged] == [(1, "a", b"", 1.0), (3, "a", b"", 1.0)]
    with pytest.raises(DamagedRow):
        list(TABLE.rows(connection))
