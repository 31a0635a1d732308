"""The records of a data directory, opened; new ones in their place if they are damaged.

Guarantee: the start serves what is whole, and says what it cannot (``records.salvage``): that has an entry in the
quarantine, and its files are kept. The damaged records are kept beside, as ``records.damaged-<time>``, until people
delete them.

Damaged are records that SQLite calls malformed, that are behind their witness (``records.Database``), or that are
missing or empty although the folder has files. If the database is whole without its log, and the log alone is damaged,
the log is put beside, and nothing is lost.

Order
    The new records are made in ``records.new`` and synced, then ``records`` is renamed, then ``records.new``. So if
    ``records`` is missing beside ``records.new``, a start goes on with the latter; else it is unfinished, and removed.

All functions block.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from flight_server.records import DATABASE_NAME, DamagedDatabase, Database, is_whole_alone, renew

from .disk_files import is_real_directory, sync_directory
from .folder import Folder

RECORDS_NAME: Final = "records"
_NEW_NAME: Final = f"{RECORDS_NAME}.new"
_DAMAGED_PREFIX: Final = f"{RECORDS_NAME}.damaged-"

_log = structlog.get_logger("flight_server.storage.opened_records")


def open_records(data_dir: Path, folder: Folder) -> Database:
    """The records, whose commits come after the names of the folder's files. Raises OSError: they cannot be opened."""
    path, new = data_dir / RECORDS_NAME, data_dir / _NEW_NAME
    if new.exists() and path.exists():
        shutil.rmtree(new)
    elif new.exists():
        new.rename(path)
        sync_directory(data_dir)
    try:
        if not path.exists() and folder.has_files():
            raise DamagedDatabase(f"{path} is missing")
        return _opened(path, folder)
    except DamagedDatabase as damage:
        if is_whole_alone(path):
            _put_log_beside(path, damage)
        else:
            _replace(path, new, folder, damage)
        return _opened(path, folder)


def damaged_records(data_dir: Path) -> list[str]:
    """The paths of damaged records that are kept beside."""
    return sorted(map(str, data_dir.glob(f"{_DAMAGED_PREFIX}*")))


def _opened(path: Path, folder: Folder) -> Database:
    path.mkdir(exist_ok=True)
    if not is_real_directory(path):
        raise OSError(f"{path} is not a directory")
    sync_directory(path.parent)
    return Database(path, folder.sync, folder.check_held, may_be_new=not folder.has_files())


def _put_log_beside(path: Path, damage: DamagedDatabase) -> None:
    aside = _aside(path)
    aside.mkdir()
    for name in (f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-shm"):
        if (path / name).exists():
            (path / name).rename(aside / name)
    for directory in (aside, path, path.parent):
        sync_directory(directory)
    _log.error("records_damaged", damage=str(damage), aside=str(aside), quarantined=[])


def _aside(path: Path) -> Path:
    return path.with_name(f"{_DAMAGED_PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")


def _replace(path: Path, new: Path, folder: Folder, damage: DamagedDatabase) -> None:
    new.mkdir()
    entries = renew(path, new, damage, folder.unnamed)
    sync_directory(new)
    aside = _aside(path)
    if path.exists():
        path.rename(aside)
    new.rename(path)
    sync_directory(path.parent)
    kept = [f"{entry.dataset} ({entry.generation})" for entry in entries]
    _log.error("records_damaged", damage=str(damage), aside=str(aside), quarantined=kept)
