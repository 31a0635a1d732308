"""A changelog's rows in the records of a data directory: kept, put back as they were, and damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flight_server.records import DATABASE_NAME, Database
from flight_server.records.tables import CHANGELOG, FOLD, HOLD, RANGE, RUN, TRANSACTION, VERSION
from flight_server.storage.opened_records import RECORDS_NAME

OF_A_CHANGELOG = (CHANGELOG, VERSION, RUN, RANGE, FOLD, HOLD, TRANSACTION)


def rows_of(database: Database, row: int) -> dict[str, list[Any]]:
    """All rows of the changelog whose dataset has this id, by table."""

    def query(connection: sqlite3.Connection) -> dict[str, list[Any]]:
        return {table.name: list(table.rows(connection, "dataset = ?", (row,))) for table in OF_A_CHANGELOG}

    return database.read(query)


def put_back(directory: Path, row: int, rows: dict[str, list[Any]]) -> None:
    """Replace its rows while no server uses the directory."""
    with opened(directory) as connection:
        for table in OF_A_CHANGELOG:
            connection.execute(f"DELETE FROM {table.name} WHERE dataset = ?", (row,))  # names of ours
            table.put(connection, rows[table.name])


def damage(directory: Path, row: int, change: str) -> None:
    """Execute one statement without new checksums; ``?`` is the dataset's id."""
    with opened(directory) as connection:
        assert connection.execute(change, (row,)).rowcount


@contextmanager
def opened(directory: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(directory / RECORDS_NAME / DATABASE_NAME, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()
