"""The tables that this process has mapped: one for each broadcast, given to all who ask.

Guarantee: while an object of the broadcast (:class:`~spark_client.broadcast.Broadcast`) that has asked for the table
lives in this process, every call gives the same table, unless its file was removed meanwhile.

Letting go
    A Spark worker that is used again outlives its tasks, and a file that it maps cannot be removed for another one.
    So a thread forgets a table ``KEEP_SECONDS`` after the last object that used it: at the next task of a stage it is
    still there, in a worker without a task it is not. The file stays for others, unless it was withdrawn meanwhile: the
    thread asks the server.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from dataclasses import dataclass, field

import pyarrow as pa

from spark_client.hosts import HostFile

from .content import Content
from .withdrawing import open_file, remove_withdrawn

KEEP_SECONDS = 5.0
_POLL_SECONDS = 0.5


@dataclass
class _Mapped:
    content: Content
    file: HostFile
    table: pa.Table
    users: weakref.WeakSet[object] = field(default_factory=weakref.WeakSet)
    unused_since: float | None = None


class MappedTables:
    """See the module. Thread-safe; a forked child keeps what its parent had mapped."""

    def __init__(self) -> None:
        self._mapped: dict[str, _Mapped] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forked)

    def table(self, content: Content, user: object) -> pa.Table:
        """The table of a content, mapped now if this process has none. Raises as ``Broadcast.table``."""
        with self._lock:
            self._forget_removed()
            if (known := self._mapped.get(content.key)) is not None:
                return self._used(known, user)
        file = open_file(content)
        try:
            table = content.map(file)
        except BaseException:
            file.close()
            raise
        with self._lock:
            kept = self._mapped.setdefault(content.key, _Mapped(content, file, table))
            if kept.file is not file:
                file.close()  # another thread stored one first
            return self._used(kept, user)

    def forget(self, content: Content) -> None:
        """Drop the table, if this process has it; those in use stay readable."""
        with self._lock:
            if (known := self._mapped.pop(content.key, None)) is not None:
                known.file.close()

    def _used(self, known: _Mapped, user: object) -> pa.Table:
        known.users.add(user)
        known.unused_since = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="broadcasts: forgets tables", daemon=True)
            self._thread.start()
        return known.table

    def _forget_removed(self) -> None:
        for key in [key for key, known in self._mapped.items() if not known.file.is_current]:
            self._mapped.pop(key).file.close()

    def _run(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            with self._lock:
                contents = self._forget_unused(time.monotonic())
                ends = not self._mapped
                if ends:
                    self._thread = None
            for content in contents:
                remove_withdrawn(content)
            if ends:
                return

    def _forget_unused(self, now: float) -> list[Content]:
        self._forget_removed()
        for known in self._mapped.values():
            if known.users:
                known.unused_since = None
            elif known.unused_since is None:
                known.unused_since = now
        unused = [
            key
            for key, known in self._mapped.items()
            if known.unused_since is not None and now - known.unused_since >= KEEP_SECONDS
        ]
        contents = []
        for key in unused:
            known = self._mapped.pop(key)
            known.file.close()
            contents.append(known.content)
        return contents

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._thread = None


mapped = MappedTables()
"""This process's."""
