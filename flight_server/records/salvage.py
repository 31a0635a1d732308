"""Salvage: copies what is whole of damaged records into new ones.

Guarantee: a dataset is copied if its rows can be read and have the right checksums; a row that is missing is found when
the dataset is recovered, which knows the numbers of them. The damaged database is only read.

A page of SQLite that is damaged ends each query that comes to it. So the rows are read for each dataset alone, and the
datasets in the order of their ids, one by one behind a damaged page.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .database import as_text, is_damage, refuses
from .tables import DATASET, FILE, OF_DATASETS, QUARANTINE, RUN, DamagedRow, Table


@dataclass(frozen=True)
class Lost:
    """A dataset that was not copied, as far as its rows can be read: ``dataset`` and ``generation`` may be wrong."""

    dataset: str
    generation: str
    files: list[str]


def salvage(path: Path, new: sqlite3.Connection) -> list[Lost]:
    """Copy what is whole of the database into a new one, within the caller's transaction; what is not. Raises
    sqlite3.Error of the new database, and of the old one what proves no damage.
    """
    lost: list[Lost] = []
    with _damage_ends(), closing(_read_only(path)) as old:
        for row in _rows_of_datasets(old):
            new.execute("SAVEPOINT dataset")
            try:
                DATASET.put(new, DATASET.rows(old, "id = ?", (row,)))
                for table in OF_DATASETS:
                    table.put(new, table.rows(old, "dataset = ?", (row,)))
            except (DamagedRow, sqlite3.Error) as error:
                if isinstance(error, sqlite3.Error) and refuses(error) and not is_damage(error):
                    raise
                new.execute("ROLLBACK TO dataset")
                lost.append(_lost(old, row))
            new.execute("RELEASE dataset")
        with _damage_ends():
            QUARANTINE.put(
                new, (entry for entry in QUARANTINE.scan(old) if not isinstance(entry, DamagedRow))
            )
    return lost


def files_of(connection: sqlite3.Connection, row: int) -> list[str]:
    """The files of a dataset, by its row."""
    return [
        str(name)
        for table in (FILE, RUN)
        for name in _column(connection, table, "name", "dataset = ?", row)
    ]


def _read_only(path: Path) -> sqlite3.Connection:
    """A connection that also reads what only the log has, and leaves both files as they are."""
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)
    connection.text_factory = as_text
    return connection


def _rows_of_datasets(old: sqlite3.Connection) -> Iterator[int]:
    """The ids of all datasets that can be found, from the lowest up."""
    last = highest = 0
    with _damage_ends():
        ((highest,),) = old.execute("SELECT coalesce(max(id), 0) FROM dataset").fetchall()
    with _damage_ends():
        for row in _column(old, DATASET, "id", "id > 0 ORDER BY id"):
            if isinstance(row, int) and row > last:
                last = row
                yield row
        return
    for row in range(last + 1, highest + 1):
        with _damage_ends():
            yield from _column(old, DATASET, "id", "id = ?", row)


def _lost(old: sqlite3.Connection, row: int) -> Lost:
    dataset = generation = ""
    files: list[str] = []
    with _damage_ends():
        for dataset, generation in old.execute("SELECT name, generation FROM dataset WHERE id = ?", (row,)):
            break
    for table in (FILE, RUN):
        with _damage_ends():
            files += map(str, _column(old, table, "name", "dataset = ?", row))
    return Lost(str(dataset), str(generation), files)


def _column(
    connection: sqlite3.Connection, table: Table, column: str, where: str, *values: int
) -> Iterator[Any]:
    query = f"SELECT {column} FROM {table.name} WHERE {where}"  # noqa: S608  # names of ours
    return (value for (value,) in connection.execute(query, values))


@contextmanager
def _damage_ends() -> Iterator[None]:
    """Let damage of the old database end the block, and nothing else."""
    try:
        yield
    except sqlite3.Error as error:
        if refuses(error) and not is_damage(error):
            raise
