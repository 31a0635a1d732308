"""A database after a crash at every step of its writes: the process killed, or the machine without power."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flight_server.records import Database, sqlite_connections
from flight_server.records import database as databases
from tests.support.crash_points import CrashPoints

COMMITS = 4


def add(number: int, size_bytes: int = 100) -> databases.Change[object]:
    def change(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS test (number INTEGER PRIMARY KEY, text TEXT)")
        connection.execute("INSERT INTO test VALUES (?, ?)", (number, "x" * size_bytes))

    return change


def numbers(database: Database) -> list[int]:
    def query(connection: sqlite3.Connection) -> list[int]:
        try:
            return [number for (number,) in connection.execute("SELECT number FROM test ORDER BY number")]
        except sqlite3.OperationalError:
            return []  # no change is there, so neither is the table

    return database.read(query)


@pytest.mark.parametrize("size_bytes", [100, pytest.param(20_000, marks=pytest.mark.long)])
def test_what_was_acknowledged_is_there_after_a_crash_at_any_step(
    base: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(sqlite_connections, "LOG_BYTES", 20_000)
    root = base / "root"
    root.mkdir()
    with CrashPoints(root, base) as points, closing(Database(root)) as database:
        for number in range(COMMITS):
            database.submit(add(number, size_bytes)).result()
            points.acknowledged = number + 1
    assert {image.acknowledged for image in points.images} == set(range(COMMITS + 1))
    assert len(points.images) > 4 * COMMITS
    for image in points.images:
        with closing(Database(image.path)) as database:
            found = numbers(database)
        assert found == [*range(len(found))], image.step
        assert image.acknowledged <= len(found) <= image.acknowledged + 1, image.step
