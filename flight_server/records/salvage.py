"""Salvage: copies what is whole of damaged records into new ones, and names the rest in the quarantine.

Guarantee: a dataset is copied if its rows can be read and have the right checksums; a row that is missing is found when
the dataset is recovered, which knows how many there are, or the sum of their checksums. The damaged database is only
read.

A page of SQLite that is damaged ends each query that comes to it. So the rows are read for each dataset alone, and the
datasets in the order of their ids, one by one behind a damaged page.

What else there was is told by the headers of the files that no row names: they are of a dataset whose rows are gone, or
garbage. Both get an entry, because neither can be told from the other.

Behind
    Where the last transactions are missing, a dataset is not served if there are files of its name that no row names:
    a later write may have made them, and an earlier state would be wrong data without an error. A changelog is served
    with an entry, which lets it take no writes, unless there are files of another generation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .dataset_records import delete, named_files
from .quarantine import Quarantined, put_quarantined, quarantined
from .sqlite_connections import (
    DamagedDatabase,
    connected,
    is_damage,
    make_tables,
    opening,
    read_only,
    refuses,
)
from .tables import DATASET, FILE, OF_DATASETS, QUARANTINE, RUN, DamagedRow, RecordTable
from .whole_database import DATABASE_NAME

Files = dict[tuple[str, str], list[str]]
"""By dataset and generation."""
Unnamed = Callable[[set[str]], Files]


def renew(old: Path, new: Path, damage: DamagedDatabase, unnamed: Unnamed) -> list[Quarantined]:
    """Make new records in an empty directory; the entries of what is not served, or not as before. Raises OSError.

    Args:
        old: the directory of the damaged records, which may be missing.
        damage: why.
        unnamed: by dataset and generation, the files that are none of these.
    """
    with opening(new), closing(connected(new / DATABASE_NAME)) as connection:
        make_tables(connection)
        connection.execute("BEGIN IMMEDIATE")
        path = old / DATABASE_NAME
        lost = _copy(path, connection) if path.exists() else {}
        kept_aside = {file for entry in quarantined(connection) for file in entry.files}
        files = unnamed(named_files(connection) | kept_aside)
        entries = list(_entries_of_copied(connection, files, damage))
        known = {entry.key for entry in entries}
        known |= set(connection.execute("SELECT name, generation FROM dataset"))
        entries += (entry for entry in _entries_of_lost(lost, files, damage) if entry.key not in known)
        put_quarantined(connection, entries)
        connection.execute("COMMIT")
    return entries


def _entries_of_lost(lost: Files, unnamed: Files, damage: DamagedDatabase) -> Iterator[Quarantined]:
    for key in sorted(lost.keys() | unnamed.keys()):
        reason = "a row of it is damaged, or missing" if key in lost else "no row of it is left"
        files = sorted({*lost.get(key, ()), *unnamed.get(key, ())})
        yield Quarantined.now(*key, f"{reason}: the records were damaged ({damage})", files)


def _entries_of_copied(
    connection: sqlite3.Connection, unnamed: Files, damage: DamagedDatabase
) -> Iterator[Quarantined]:
    """The entries of those that are not served as before; the rows of those that are not served are deleted."""
    if not damage.behind:
        return
    changelogs = {row for (row,) in connection.execute("SELECT dataset FROM changelog")}
    rows = connection.execute("SELECT id, name, generation FROM dataset").fetchall()
    for row, name, generation in rows:
        files = sorted({*files_of(connection, row), *unnamed.get((name, generation), ())})
        later = {other for dataset, other in unnamed if dataset == name}
        if later - ({generation} if row in changelogs else set()):
            delete(connection, row)
            reason = (
                f"its rows are whole, but files of it are there that no row names, of generation "
                f"{', '.join(sorted(later))}: the last changes may be missing ({damage})"
            )
            yield Quarantined.now(name, generation, reason, files)
        elif row in changelogs:
            reason = f"its last versions may be missing: the records were damaged ({damage})"
            yield Quarantined.now(name, generation, reason, files, served=True)


def _copy(path: Path, new: sqlite3.Connection) -> Files:
    """Copy what is whole of the database; the files of what is not, as far as its rows can be read. Raises
    sqlite3.Error of the new database, and of the old one what proves no damage.
    """
    lost: Files = {}
    with _damage_ends(), closing(read_only(path)) as old:
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
                lost.setdefault(_key_of(old, row), []).extend(files_of(old, row))
            new.execute("RELEASE dataset")
        with _damage_ends():
            entries = QUARANTINE.scan(old)
            QUARANTINE.put(new, (entry for entry in entries if not isinstance(entry, DamagedRow)))
    return lost


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


def _key_of(old: sqlite3.Connection, row: int) -> tuple[str, str]:
    """The dataset's name and generation, which may be wrong; empty if they cannot be read."""
    with _damage_ends():
        for name, generation in old.execute("SELECT name, generation FROM dataset WHERE id = ?", (row,)):
            return str(name), str(generation)
    return "", ""


def files_of(connection: sqlite3.Connection, row: int) -> list[str]:
    """The files of a dataset, also those of damaged rows, as far as these can be read."""
    files: list[str] = []
    for table in (FILE, RUN):
        with _damage_ends():
            files += map(str, _column(connection, table, "name", "dataset = ?", row))
    return files


def _column(
    connection: sqlite3.Connection, table: RecordTable, column: str, where: str, *values: int
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
