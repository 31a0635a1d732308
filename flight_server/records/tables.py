"""Tables: the schema of the server's records, and rows with a checksum.

SQLite has no checksums: a flipped bit in a row is another value without an error. So each row ends with the CRC-32C of
its other values, which :meth:`RecordTable.rows` compares: a damaged row costs its dataset, and not the start.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from flight_server.protocol.checksums import crc32c

FORMAT: Final = 3
"""The database's ``user_version``; 0 is a new one."""

Value = int | float | str | bytes | None


class DamagedRow(Exception):
    """A row's values differ from the written ones. ``values`` may be wrong."""

    def __init__(self, table: str, values: Sequence[Value]) -> None:
        super().__init__(f"a row of table {table!r} has another checksum")
        self.values = values


class RecordTable:
    """One table. ``columns``: their declarations, by name; the checksum is one more."""

    def __init__(self, name: str, columns: dict[str, str], constraints: str = "") -> None:
        self.name = name
        self.columns = tuple(columns)
        declared = ", ".join(f"{column} {declaration}" for column, declaration in columns.items())
        further = f", {constraints}" if constraints else ""
        # With a key of several columns the table is ordered by it, instead of having an index beside.
        tail = " WITHOUT ROWID" if constraints.startswith("PRIMARY KEY") else ""
        self.declaration = f"CREATE TABLE {name} ({declared}, crc32c INTEGER NOT NULL{further}){tail}"
        self._types = [_types(declaration) for declaration in columns.values()]
        self._all = ", ".join(self.columns)
        marks = ", ".join("?" * (len(self.columns) + 1))
        self._insert = f"INSERT OR REPLACE INTO {name} ({self._all}, crc32c) VALUES ({marks})"  # noqa: S608  # names of ours

    def put(self, connection: sqlite3.Connection, rows: Iterable[Sequence[Value]]) -> int:
        """Insert the rows, or replace those with the same key; the sum of their checksums. Their values have the
        columns' types: SQLite would store others converted, and the checksum would not be theirs.
        """
        total = 0

        def with_checksums() -> Iterator[Sequence[Value]]:
            nonlocal total
            for row in rows:
                stored = self._stored(row)
                crc = checksum(stored)
                total += crc
                yield (*stored, crc)

        connection.executemany(self._insert, with_checksums())
        return total

    def delete(self, connection: sqlite3.Connection, where: str, values: Sequence[Value]) -> int:
        """Delete the rows; the sum of their checksums."""
        total = self.total(connection, where, values)
        connection.execute(f"DELETE FROM {self.name} WHERE {where}", values)  # noqa: S608  # names of ours
        return total

    def total(self, connection: sqlite3.Connection, where: str, values: Sequence[Value]) -> int:
        """The sum of the rows' checksums."""
        # Not row by row: Python's module gives the interpreter's lock back for each, and a busy loop keeps it then.
        query = f"SELECT COALESCE(SUM(crc32c), 0) FROM {self.name} WHERE {where}"  # noqa: S608  # names of ours
        ((total,),) = connection.execute(query, values).fetchall()
        return int(total)

    def _stored(self, row: Sequence[Value]) -> Sequence[Value]:
        """The values as SQLite stores them: it has no negative zero."""
        for value, column, types in zip(row, self.columns, self._types, strict=True):
            if type(value) not in types:
                raise TypeError(f"{self.name}.{column} takes no {type(value).__name__}")
        return [value + 0.0 if isinstance(value, float) else value for value in row]

    def rows(
        self, connection: sqlite3.Connection, where: str = "1", values: Sequence[Value] = ()
    ) -> Iterator[tuple[Any, ...]]:
        """The rows. Raises DamagedRow at the first one that is."""
        for row in self.scan(connection, where, values):
            if isinstance(row, DamagedRow):
                raise row
            yield row

    def scan(
        self, connection: sqlite3.Connection, where: str = "1", values: Sequence[Value] = ()
    ) -> Iterator[tuple[Any, ...] | DamagedRow]:
        """The rows, and in place of damaged ones what is wrong."""
        query = f"SELECT {self._all}, crc32c FROM {self.name} WHERE {where}"  # noqa: S608  # names of ours
        for *row, crc in connection.execute(query, values):
            yield tuple(row) if checksum(row) == crc else DamagedRow(self.name, row)


def _types(declaration: str) -> frozenset[type]:
    """The types of a column's values that SQLite stores as they are."""
    for name, stored in (("TEXT", str), ("BLOB", bytes), ("INTEGER", int), ("REAL", float)):
        if declaration.startswith(name):
            return frozenset({stored, type(None)})
    return frozenset({str, bytes, int, float, type(None)})


def checksum(row: Sequence[Value]) -> int:
    """The CRC-32C of a row's values and types: of ASCII text with the lengths of bytes, and then of the bytes."""
    described = ascii([(len(value),) if isinstance(value, bytes) else value for value in row])
    crc = crc32c(described.encode())
    for value in row:
        if isinstance(value, bytes):
            crc = crc32c(value, crc)
    return crc


DATASET = RecordTable(
    "dataset",
    {
        "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "name": "TEXT NOT NULL UNIQUE",
        "generation": "TEXT NOT NULL",
        "kind": "TEXT NOT NULL",
        "facts": "TEXT NOT NULL",  # JSON
        "schema": "BLOB",
    },
)
FILE = RecordTable(
    "file",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "number": "INTEGER",
        "name": "TEXT UNIQUE",
        "size_bytes": "INTEGER NOT NULL",
    },
    "PRIMARY KEY (dataset, number)",
)
PARTITION = RecordTable(
    "partition",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "number": "INTEGER NOT NULL",
        "first": "INTEGER NOT NULL",
        "first_bytes": "INTEGER NOT NULL",
        "frames": "INTEGER NOT NULL",
        "rows": "INTEGER NOT NULL",
        "size_bytes": "INTEGER NOT NULL",
        "frames_crc32c": "INTEGER NOT NULL",
    },
    "PRIMARY KEY (dataset, number)",
)
INDEX = RecordTable(
    "frames",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "partition": "INTEGER NOT NULL",
        "part": "INTEGER NOT NULL",
        "records": "BLOB NOT NULL",  # see ``frames.records``
    },
    "PRIMARY KEY (dataset, partition, part)",
)
TRANSACTION = RecordTable(
    "transaction_id",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "id": "NOT NULL",  # TEXT; of an id that was forgotten its hash, an INTEGER
        "entry": "TEXT",  # JSON: when it was used, and its numbers with their versions
    },
    "PRIMARY KEY (dataset, id)",
)
CHANGELOG = RecordTable(
    "changelog",
    {
        "dataset": "INTEGER PRIMARY KEY REFERENCES dataset ON DELETE CASCADE",
        "since": "INTEGER NOT NULL",
        "upper": "INTEGER NOT NULL",
        "time": "REAL NOT NULL",
        "rows_crc32c": "INTEGER NOT NULL",  # the sum of the checksums of all rows of ``OF_CHANGELOGS``
    },
)
VERSION = RecordTable(
    "version",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "first": "INTEGER NOT NULL",
        "last": "INTEGER NOT NULL",
        "time": "REAL NOT NULL",
        "block": "BLOB NOT NULL",
    },
    "PRIMARY KEY (dataset, first)",
)
RUN = RecordTable(
    "run",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "name": "TEXT NOT NULL",
        "version": "INTEGER",
        "blocks": "TEXT NOT NULL",  # JSON: the numbers of each
    },
    "PRIMARY KEY (dataset, name)",
)
RANGE = RecordTable(
    "range",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "low": "INTEGER NOT NULL",  # its first hash, less 2**63
        "since": "INTEGER NOT NULL",
        "base": "TEXT",
        "block": "BLOB",  # of a base that is in no file
    },
    "PRIMARY KEY (dataset, low)",
)
FOLD = RecordTable(
    "fold",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "upto": "INTEGER NOT NULL",
        "since": "INTEGER NOT NULL",
        "low": "INTEGER NOT NULL",  # as of a range
        "high": "INTEGER NOT NULL",
    },
    "PRIMARY KEY (dataset, upto)",
)
HOLD = RecordTable(
    "hold",
    {
        "dataset": "INTEGER NOT NULL REFERENCES dataset ON DELETE CASCADE",
        "name": "TEXT NOT NULL",
        "version": "INTEGER NOT NULL",
        "until": "REAL",  # NULL once it has ended by itself
        "taken": "REAL NOT NULL",
        "owner": "TEXT",
        "principal": "TEXT",
    },
    "PRIMARY KEY (dataset, name)",
)
QUARANTINE = RecordTable(
    "quarantine",
    {
        "name": "TEXT NOT NULL",  # of a dataset that may have no row any more
        "generation": "TEXT NOT NULL",
        "reason": "TEXT NOT NULL",
        "time": "TEXT NOT NULL",
        "files": "TEXT NOT NULL",  # JSON: names in the folder
        "served": "INTEGER NOT NULL",
    },
    "PRIMARY KEY (name, generation)",
)
OF_CHANGELOGS: Final = (VERSION, RUN, RANGE, FOLD, HOLD, TRANSACTION)
"""The tables whose rows a changelog has."""
OF_DATASETS: Final = (FILE, PARTITION, INDEX, TRANSACTION, CHANGELOG, VERSION, RUN, RANGE, FOLD, HOLD)
"""The tables whose rows belong to a row of ``dataset``, and go with it."""
DECLARATIONS: Final = [
    "CREATE TABLE server (commits INTEGER NOT NULL)",
    *(table.declaration for table in (DATASET, *OF_DATASETS, QUARANTINE)),
]
TABLES: Final = f"{'; '.join(DECLARATIONS)}; INSERT INTO server VALUES (0);"  # noqa: S608  # names of ours
