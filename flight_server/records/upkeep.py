"""Keeping the database small: unused pages are cut off, while changes come.

Pages that deleted rows leave are used again; when they are a quarter of the file, it is cut, a few pages at a time
while no change waits. SQLite itself copies its log into the database (``sqlite_connections.LOG_BYTES``).
"""

from __future__ import annotations

import sqlite3

from .sqlite_connections import copy_log, roll_back

_UNUSED_PAGES = 1024
_CUT_PAGES = 256
"""So many at once: a few milliseconds."""


class Upkeep:
    """Of one database, by the thread that writes it."""

    def __init__(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        self._changes = 0  # since the last look for unused pages
        self._unused_pages = 0  # to be cut off

    @property
    def cuts(self) -> bool:
        """Whether unused pages are to be cut off now."""
        return bool(self._unused_pages)

    @property
    def is_due(self) -> bool:
        """Whether :meth:`cut_off` is to be called soon, also without a change."""
        return self._changes > _UNUSED_PAGES

    def changed(self, changes: int) -> None:
        """So many changes were committed."""
        self._changes += changes

    def cut_off(self) -> None:
        """Cut off some unused pages; look first, after many changes, whether there are."""
        try:
            if self.is_due:
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


def _unused_pages(connection: sqlite3.Connection) -> int:
    """How many are to be cut off, if so many are unused that it is worth it."""
    ((unused,),) = connection.execute("PRAGMA freelist_count").fetchall()
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    return int(unused) if unused > max(_UNUSED_PAGES, pages // 4) else 0
