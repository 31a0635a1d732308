"""Whether a database has all transactions that were acknowledged, which is seen before anything is written to it.

``witness`` has their number, which the database has, too: it is written after each commit, without a sync, so it is
never ahead of a whole database. If it is, transactions are missing (:class:`DamagedDatabase`): the log was cut or
flipped, or an older copy was put back. A database that has as many without its log needs no log
(:func:`is_whole_alone`): SQLite would read an old log's whole beginning over it.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Final

from .sqlite_connections import DamagedDatabase, connected, error_code, opening, read_only, version_of
from .tables import DECLARATIONS, FORMAT, QUARANTINE, DamagedRow
from .trouble import OtherFormat

DATABASE_NAME: Final = "records.db"
WITNESS_NAME: Final = "witness"
_COUNT = struct.Struct("<QQ")


def check_whole(path: Path, witness: int, *, may_be_new: bool) -> None:
    """Raise what is wrong with the database; ``witness`` is a descriptor."""
    acknowledged = _witnessed(os.pread(witness, _COUNT.size, 0)) or 0
    try:
        with opening(path):
            commits = _commits(path)
    except DamagedDatabase as damage:
        damage.behind = acknowledged > _readable_commits(path)
        raise
    if commits is None and not may_be_new:
        raise DamagedDatabase(f"{path} is missing, or empty", behind=acknowledged > 0)
    if acknowledged > (commits or 0):
        raise DamagedDatabase(
            f"{path} has {commits or 0} transactions, and {acknowledged} were acknowledged: its log was cut "
            "or changed, or an older copy was put back",
            behind=True,
        )


def witness_transactions(witness: int, commits: int) -> None:
    """Note their number. Raises OSError, which changes nothing: it is a help, not a fact."""
    os.pwrite(witness, _COUNT.pack(commits, commits), 0)


def is_whole_alone(directory: Path) -> bool:
    """Whether the database is whole, and has all acknowledged transactions, without its log. Raises OSError."""
    path = directory / DATABASE_NAME
    if not path.exists():
        return False
    acknowledged = _witnessed((directory / WITNESS_NAME).read_bytes())
    try:
        with opening(path), closing(read_only(path, immutable=True)) as connection:
            return acknowledged is not None and _checked(connection, path) == acknowledged
    except DamagedDatabase:
        return False


def _witnessed(data: bytes) -> int | None:
    """The number in the witness; None if it is not whole."""
    number, again = _COUNT.unpack(data[: _COUNT.size].ljust(_COUNT.size, b"\0"))
    return int(number) if number == again else None


def _readable_commits(path: Path) -> int:
    """How many transactions a damaged database has had; 0 if that cannot be read."""
    try:
        with closing(read_only(path)) as connection:
            ((commits,),) = connection.execute("SELECT commits FROM server").fetchall()
            return int(commits)
    except (sqlite3.Error, ValueError, TypeError):
        return 0


def _commits(path: Path) -> int | None:
    """How many transactions there were; None without a table. Raises DamagedDatabase, OtherFormat, sqlite3.Error."""
    if not path.exists():
        return None
    try:
        with closing(read_only(path)) as connection:
            return _checked(connection, path)
    except sqlite3.OperationalError as error:
        if error_code(error) & 0xFF != sqlite3.SQLITE_READONLY:
            raise
    with closing(connected(path)) as connection:  # takes back what its maker had begun when it was killed
        return _checked(connection, path)


def _checked(connection: sqlite3.Connection, path: Path) -> int | None:
    """As :func:`_commits`."""
    version = version_of(connection)
    declared = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'table'")}
    if version == 0 and not declared:
        return None  # its maker was killed
    if version not in (0, FORMAT):
        raise OtherFormat(
            f"{path} has format {version}, and this version reads {FORMAT}: start the version that wrote it, or name "
            "another directory; nothing in it was changed"
        )
    if version == 0 or not declared.issuperset(DECLARATIONS):
        raise DamagedDatabase(f"{path} lacks tables of format {FORMAT}")
    for (trouble,) in connection.execute("PRAGMA integrity_check(1)"):
        if trouble != "ok":
            raise DamagedDatabase(f"{path}: {trouble}")
    if any(isinstance(row, DamagedRow) for row in QUARANTINE.scan(connection)):
        raise DamagedDatabase(f"{path}: an entry of the quarantine has another checksum")
    ((commits,),) = connection.execute("SELECT commits FROM server").fetchall()
    return int(commits)
