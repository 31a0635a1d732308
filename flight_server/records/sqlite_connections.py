"""Connections to the records' database with the server's settings, and what SQLite's errors mean.

Guarantee: a file that is no database, or is not as SQLite wrote it, is :class:`DamagedDatabase`; what the disk or
another process refuses now is an OSError, or, of an open database, :class:`DiskTrouble`.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

from .tables import FORMAT, TABLES
from .trouble import DiskTrouble, trouble_with

LOG_BYTES = 4 << 20
"""A longer log is copied into the database, by SQLite behind a commit, and cut to this length when it is begun anew. A
process that reads the database for long keeps the log growing."""
_PAGE_BYTES = 4096
BUSY_SECONDS = 2.0
"""So long a transaction waits for another process that has locked the database."""
_CACHE_KIB = 1024

_as_text = partial(str, encoding="utf-8", errors="replace")
"""How damaged text is read: a row with it has another checksum, and does not end its query."""

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_REFUSALS = (
    *_DAMAGE,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
)
"""What refuses a whole transaction; other errors are of one change."""


class DamagedDatabase(OSError):
    """The database is not one, is malformed, or lacks transactions that it had. ``behind``: the last ones."""

    def __init__(self, message: str, *, behind: bool = False) -> None:
        super().__init__(message)
        self.behind = behind


def connected(path: Path) -> sqlite3.Connection:
    """A connection to a database, new or not, with the server's settings. Raises DamagedDatabase or OSError."""
    with opening(path):
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _as_text
        try:
            if connection.execute("PRAGMA page_count").fetchall() == [(0,)]:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before its first page is written
            ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
            if mode != "wal":
                raise OSError(f"{path}: its file system allows no write-ahead log of SQLite")
            for pragma in (
                "synchronous = FULL",
                f"wal_autocheckpoint = {LOG_BYTES // _PAGE_BYTES}",
                f"journal_size_limit = {LOG_BYTES}",
                f"cache_size = -{_CACHE_KIB}",
                "temp_store = MEMORY",
                "secure_delete = OFF",
                "foreign_keys = ON",
            ):
                connection.execute(f"PRAGMA {pragma}").fetchall()
        except BaseException:
            connection.close()
            raise
    return connection


def read_only(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """A connection that changes no file, and unless ``immutable`` reads the log, too. Raises sqlite3.Error."""
    uri = f"file:{quote(str(path))}?{'immutable=1' if immutable else 'mode=ro'}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    connection.text_factory = _as_text
    return connection


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables, if the database is new."""
    if version_of(connection) == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")


def version_of(connection: sqlite3.Connection) -> int:
    """The number of the tables' format; 0 if they were not made."""
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    return int(version)


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as DamagedDatabase or OSError."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise DamagedDatabase(f"{path}: {error}") from None
        locked = error_code(error) & 0xFF == sqlite3.SQLITE_BUSY
        raise OSError(f"{path}{' is locked by another process' if locked else f': {error}'}") from None


def is_damage(error: sqlite3.Error) -> bool:
    """Whether it proves that the file is not as SQLite wrote it."""
    return error_code(error) & 0xFF in _DAMAGE


def refuses(error: sqlite3.Error) -> bool:
    """Whether it is of the disk or of another process, and not of a statement."""
    return error_code(error) & 0xFF in _REFUSALS


def error_code(error: Exception) -> int:
    """SQLite's extended code; 0 for an error of Python's module."""
    return getattr(error, "sqlite_errorcode", None) or 0


def trouble_of(path: Path, error: Exception) -> DiskTrouble:
    """Why the database does not take or give something now."""
    if isinstance(error, OSError):
        return trouble_with(path, error)
    code = error_code(error)
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return DiskTrouble(f"{path} is locked by another process", full=False)
    # The second: the shared memory of the log, a file, found no room.
    full = code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return DiskTrouble(f"{path}: {error} ({name})", full=full)


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction without its changes. Never raises."""
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def copy_log(connection: sqlite3.Connection) -> None:
    """Copy the log into the database, as far as it goes without a wait for readers and writers."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def refuse_special(path: Path) -> None:
    """Raise OSError if something else than a file is there: SQLite would follow a link, or wait for a FIFO."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(f"{path} is not a regular file")
