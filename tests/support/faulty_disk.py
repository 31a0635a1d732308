"""A disk that fails, or kills its process, on command: for real servers in processes of their own.

In the process of ``FaultyServer.start(data_dir)`` the functions of :mod:`os` that change what is below the data
directory are wrapped, and do what the test says at that moment:

* ``server.kill_at(k)``: the process kills itself with SIGKILL before the k-th change from now on. A
  write is two steps: before it, and when half of its bytes are written;
* ``server.fail(pwritev="ENOSPC", …)``: these functions fail from now on; ``server.heal()`` ends that;
* ``server.lose_power()``, of one that was started with ``loses_power``: SIGKILL, and what was not synced is gone.

What SQLite does to the database has names of its own: ``db_write``, ``db_sync``, ``db_truncate`` and ``db_unlink``, and
``wal_write`` and so on for its log. A commit is writes to the log and one sync of it: where ``wal_write`` fails nothing
of it is there, where ``wal_sync`` fails the log may have it. Each but a write is one step of ``kill_at``.

Limits: only calls through :mod:`os` and those of SQLite are seen (the server uses nothing else).
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support import platter, sqlite_files
from tests.support.platter import Platter
from tests.support.server_process import ServerProcess

_WRITES = ("write", "pwrite", "pwritev")
_SYNCS = ("fsync", "fdatasync")
_CHANGES = ("open", *_WRITES, *_SYNCS, "ftruncate", "rename", "unlink", "mkdir", "rmdir")
_NO_STEPS = ("pread", "wal_write", "db_write")
_BY_FD = frozenset({*_WRITES, *_SYNCS, "ftruncate", "pread"})


def install(root: str, control: str, store: str | None, slow_seconds: float) -> None:
    """Give this process such a disk; the arguments are those of :class:`FaultyDisk`."""
    disk = FaultyDisk(Path(root), Path(control), None if store is None else Path(store), slow_seconds)
    disk.install()


class FaultyDisk:
    """The wrappers, in the process that they are for.

    Args:
        root: the data directory.
        control: the file of :class:`DiskOrders`.
        store: of a :class:`Platter`, for a process whose machine may lose its power.
        slow_seconds: how long the disk takes at most, in three of ten cases, for an fsync, a rename, a removal or a
            sync of SQLite: what comes in between is then seen more often.
    """

    def __init__(self, root: Path, control: Path, store: Path | None, slow_seconds: float) -> None:
        self._root = os.fspath(root)
        self._control = control
        self._platter = None if store is None else Platter(root, store)
        self._slow_seconds = slow_seconds
        self._fds: set[int] = set()
        self._order: int | None = None
        self._steps = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        """Wrap the functions, for the life of the process."""
        if self._platter is not None:
            self._platter.install()
        sqlite_files.watch(self._around)
        if self._slow_seconds:
            for name in ("fsync", "rename", "unlink"):
                setattr(os, name, self._slow(getattr(os, name)))
        for name in (*_CHANGES, "pread"):
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        close = os.close

        def forget(fd: int) -> None:
            self._fds.discard(fd)
            close(fd)

        os.close = forget

    def _slow(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def late(*arguments: Any, **options: Any) -> Any:
            self._pause()
            return function(*arguments, **options)

        return late

    def _pause(self) -> None:
        # Not in the event loop's thread, which calls none of these after the start.
        if threading.current_thread() is not threading.main_thread() and random.random() < 0.3:
            time.sleep(random.uniform(0, self._slow_seconds))

    def _around(self, what: str, path: Path, work: Callable[[], None]) -> None:
        if os.fspath(path).startswith(self._root):
            self._before(f"{'wal' if path.name.endswith('-wal') else 'db'}_{what}")
            if what == "sync":
                self._pause()
        if self._platter is None:
            work()
        else:
            self._platter.around(what, path, work)

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(first: Any, *rest: Any, **options: Any) -> Any:
            if not self._is_ours(name, first, options):
                return function(first, *rest, **options)
            if name != "open":
                self._before(name, function, first, *rest)
                return function(first, *rest, **options)
            changes = bool(rest and rest[0] & os.O_CREAT)
            if changes:
                self._before(name, function, first, *rest)
            fd = function(first, *rest, **options)
            self._fds.add(fd)
            return fd

        return wrapper

    def _is_ours(self, name: str, first: Any, options: dict[str, Any]) -> bool:
        if name in _BY_FD:
            return first in self._fds
        return "dir_fd" not in options and os.fspath(first).startswith(self._root)

    def _before(
        self, name: str, function: Callable[..., Any] | None = None, first: Any = None, *rest: Any
    ) -> None:
        try:
            orders = json.loads(self._control.read_text())
        except FileNotFoundError:
            return
        with self._lock:
            failure = orders.get("fail", {}).get(name)
            if failure is not None:
                raise OSError(getattr(errno, failure), os.strerror(getattr(errno, failure)))
            kill_at = orders.get("kill_at")
            if kill_at is None or name in _NO_STEPS:
                return
            if self._order != orders["order"]:
                self._order, self._steps = orders["order"], 0
            if self._steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self._steps += 1
            if function is not None and name in _WRITES:
                if self._steps == kill_at:
                    data = b"".join(rest[0]) if name == "pwritev" else bytes(rest[0])
                    half = data[: len(data) // 2]
                    function(first, [half] if name == "pwritev" else half, *rest[1:])
                    os.kill(os.getpid(), signal.SIGKILL)
                self._steps += 1


def _write(control: Path, **orders: Any) -> None:
    unfinished = control.with_suffix(".new")
    unfinished.write_text(json.dumps(orders))
    unfinished.replace(control)


class DiskOrders:
    """What the wrappers of a process are to do from now on; each order takes the place of the one before.

    ``control`` is the file that they read, beside the data directory.
    """

    control: Path
    _orders = 0

    def kill_at(self, step: int) -> None:
        """Let the process kill itself before its change number ``step`` from now on; the first is 0."""
        self.order(kill_at=step)

    def fail(self, **functions: str) -> None:
        """Let these functions fail from now on with these error names."""
        self.order(fail=functions)

    def heal(self) -> None:
        """Let everything work again."""
        self.order()

    def order(self, **orders: Any) -> None:
        self._orders += 1
        _write(self.control, order=self._orders, **orders)


class FaultyServer(DiskOrders, ServerProcess):
    """A server with such a disk."""

    _store: Path | None
    _data_dir: Path

    @classmethod
    def start(  # type: ignore[override]  # it has a data directory
        cls,
        data_dir: Path,
        *,
        fail: dict[str, str] | None = None,
        loses_power: bool = False,
        slow_seconds: float = 0.0,
        **settings: Any,
    ) -> Self:
        """Start a server, with functions that fail from the beginning, and return once it serves.

        Args:
            fail: see the method ``fail``.
            loses_power: whether ``lose_power`` may be called.
            slow_seconds: see :class:`FaultyDisk`.
            settings: options of ``flight-server``.

        Raises:
            RuntimeError: with what the server said, when it did not start.
        """
        control = data_dir.with_name(f"{data_dir.name}.control")
        store = data_dir.with_name(f"{data_dir.name}.platter") if loses_power else None
        if store is not None:
            shutil.rmtree(store, ignore_errors=True)
        _write(control, fail=fail or {})
        disk = {"root": data_dir, "control": control, "store": store, "slow_seconds": slow_seconds}
        server = super().start(disk=json.dumps(disk, default=str), data_dir=data_dir, **settings)
        server.control, server._store, server._data_dir = control, store, data_dir
        return server

    def lose_power(self) -> None:
        """End the process with SIGKILL; the data directory is then as after the loss of the machine's power."""
        self.kill()
        assert self._store is not None
        platter.restore(self._store, self._data_dir)
