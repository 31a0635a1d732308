"""Keeping the database small: its log copied into it, and unused pages cut off, while changes come.

Above ``LOG_BYTES`` a thread of its own copies the log into the database while the writer goes on; then the writer
copies the little that came meanwhile, and SQLite begins the log anew. A process that reads the database for long keeps
the log growing. Pages that deleted rows leave are used again; when they are a quarter of the file, it is cut, a few
pages at a time while no change waits.
"""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from . import sqlite_connections
from .sqlite_connections import connected, copy_log, roll_back

_UNUSED_PAGES = 1024
_CUT_PAGES = 256
"""So many at once: a few milliseconds."""


class Upkeep:
    """Of one database, by the thread that writes it; :meth:`close` by any one, after that has ended."""

    def __init__(self, path: Path, writer: sqlite3.Connection) -> None:
        self._path = path
        self._writer = writer
        self._checkpoint: Future[None] | None = None
        self._copied_log_bytes = 0  # the log's size at the last checkpoint
        self._changes = 0  # since the last look for unused pages
        self._unused_pages = 0  # to be cut off
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flight-server-checkpoint")

    @property
    def cuts(self) -> bool:
        """Whether unused pages are to be cut off now."""
        return bool(self._unused_pages)

    @property
    def is_due(self) -> bool:
        """Whether :meth:`step` is to be called soon, also without a change."""
        return self._checkpoint is not None or self._changes > _UNUSED_PAGES

    def changed(self, changes: int) -> None:
        """So many changes were committed."""
        self._changes += changes

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    def step(self, *, busy: bool) -> None:
        """Have the log copied when it is long, and unused pages cut off; a step of that."""
        if self._checkpoint is not None:
            if self._checkpoint.done():
                self._checkpoint = None
                with suppress(sqlite3.Error):  # tried again when the log has grown
                    copy_log(self._writer)
                self._copied_log_bytes = log_bytes(self._path)
            return
        size, most = log_bytes(self._path), sqlite_connections.LOG_BYTES
        if size < self._copied_log_bytes:  # it was begun anew, which cuts it to the limit
            self._copied_log_bytes = 0
        if size > max(most, self._copied_log_bytes + most // 4):
            self._checkpoint = self._threads.submit(_copy_log_of, self._path)
        elif not busy:
            self._cut_off()

    def _cut_off(self) -> None:
        """Cut off some unused pages; look first, after many changes, whether there are."""
        try:
            if self._changes > _UNUSED_PAGES:
                self._changes = 0
                self._unused_pages = _unused_pages(self._writer)
            if self._unused_pages:
                self._unused_pages = max(0, self._unused_pages - _CUT_PAGES)
                # Not ``execute``, which takes the first step only: one page.
                self._writer.executescript(f"PRAGMA incremental_vacuum({_CUT_PAGES})")
                if not self._unused_pages:
                    copy_log(self._writer)  # which shortens the file
        except sqlite3.Error:
            roll_back(self._writer)
            self._unused_pages = 0


def log_bytes(path: Path) -> int:
    """Of a database's log."""
    return size_bytes(f"{path}-wal")


def size_bytes(path: str | Path) -> int:
    """Of a file; 0 if it is missing."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  # for each commit: a path takes several times as long
    except FileNotFoundError:
        return 0


def _copy_log_of(path: Path) -> None:
    """Copy the log, while another thread writes."""
    # After an error it is tried again when the log has grown. A DamagedDatabase is an OSError.
    with suppress(sqlite3.Error, OSError), closing(connected(path)) as connection:
        copy_log(connection)


def _unused_pages(connection: sqlite3.Connection) -> int:
    """How many are to be cut off, if so many are unused that it is worth it."""
    ((unused,),) = connection.execute("PRAGMA freelist_count").fetchall()
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    return int(unused) if unused > max(_UNUSED_PAGES, pages // 4) else 0
