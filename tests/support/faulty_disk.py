"""A disk that fails, or kills its process, on command: for real servers in processes of their own.

``FaultyServer.start(data_dir)`` forks a server from a process that has imported everything already, so
a start costs a tenth of a second. In it, the functions of :mod:`os` that change what is below the data
directory are wrapped, and do what the test says at that moment:

* ``server.kill_at(k)``: the process kills itself with SIGKILL before the k-th change from now on. A
  write is two steps: before it, and when half of its bytes are written;
* ``server.fail(pwritev="ENOSPC", …)``: these functions fail from now on; ``server.heal()`` ends that;
* ``server.delay(rename=0.1, …)``: these functions wait so many seconds before they work, also until ``heal``;
* ``server.lose_power()``, of one that was started with ``loses_power``: SIGKILL, and what was not synced is gone.

What SQLite does to the database has names of its own: ``db_write``, ``db_sync``, ``db_truncate`` and ``db_unlink``, and
``wal_write`` and so on for its log. A commit is writes to the log and one sync of it: where ``wal_write`` fails nothing
of it is there, where ``wal_sync`` fails the log may have it. Each but a write is one step of ``kill_at``.

Limits: only calls through :mod:`os` and those of SQLite are seen (the server uses nothing else).
"""

from __future__ import annotations

import asyncio
import errno
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvloop

from flight_server import config
from flight_server.server import Server
from tests.support import platter, sqlite_files
from tests.support.platter import Platter

START_DEADLINE_SECONDS = 120.0
STOP_DEADLINE_SECONDS = 60.0

_WRITES = ("write", "pwrite", "pwritev")
_SYNCS = ("fsync", "fdatasync")
_CHANGES = ("open", *_WRITES, *_SYNCS, "ftruncate", "rename", "unlink", "mkdir", "rmdir")
_NO_STEPS = ("pread", "wal_write", "db_write")
_BY_FD = frozenset({*_WRITES, *_SYNCS, "ftruncate", "pread"})
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload([__name__])


class FaultyDisk:
    """The wrappers, in the process that they are for. ``control`` is the file of :class:`DiskOrders`; ``store``, of a
    :class:`Platter`, for a process whose machine may lose its power; ``pause`` is called before SQLite syncs.
    """

    def __init__(
        self,
        root: Path,
        control: Path,
        store: Path | None = None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = os.fspath(root)
        self._control = control
        self._platter = None if store is None else Platter(root, store)
        self._pause = pause
        self._fds: set[int] = set()
        self._order: int | None = None
        self._steps = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        """Wrap the functions, for the life of the process."""
        if self._platter is not None:
            self._platter.install()
        sqlite_files.watch(self._around)
        for name in (*_CHANGES, "pread"):
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        close = os.close

        def forget(fd: int) -> None:
            self._fds.discard(fd)
            close(fd)

        os.close = forget

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
        time.sleep(orders.get("delay", {}).get(name, 0))
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


class DiskOrders:
    """What the wrappers of a process are to do from now on; each order takes the place of the one before.

    Args:
        control: the file that they read, beside the data directory.
    """

    def __init__(self, control: Path) -> None:
        self._control = control
        self._orders = 0
        control.unlink(missing_ok=True)

    def kill_at(self, step: int) -> None:
        """Let the process kill itself before its change number ``step`` from now on; the first is 0."""
        self.order(kill_at=step)

    def fail(self, **functions: str) -> None:
        """Let these functions fail from now on with these error names."""
        self.order(fail=functions)

    def delay(self, **functions: float) -> None:
        """Let each call of these functions wait so many seconds from now on."""
        self.order(delay=functions)

    def heal(self) -> None:
        """Let everything work again."""
        self.order()

    def order(self, **orders: Any) -> None:
        self._orders += 1
        unfinished = self._control.with_suffix(".new")
        unfinished.write_text(json.dumps({"order": self._orders, **orders}))
        unfinished.replace(self._control)


class FaultyServer(DiskOrders):
    """A server in a process of its own; also a context manager that kills it."""

    def __init__(
        self, process: ForkServerProcess, pipe: Connection, control: Path, data_dir: Path, store: Path | None
    ) -> None:
        super().__init__(control)
        self.process = process
        self.location = ""
        self._pipe = pipe
        self._data_dir = data_dir
        self._store = store

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        fail: dict[str, str] | None = None,
        loses_power: bool = False,
        **settings: Any,
    ) -> Self:
        """Start a server, with functions that fail from the beginning, and return once it serves.

        Raises:
            RuntimeError: with what the server said, when it did not start.
        """
        control = data_dir.with_name(f"{data_dir.name}.control")
        store = data_dir.with_name(f"{data_dir.name}.platter") if loses_power else None
        if store is not None:
            shutil.rmtree(store, ignore_errors=True)
        ours, theirs = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_run, args=(data_dir, control, store, theirs, settings), daemon=True)
        server = cls(process, ours, control, data_dir, store)
        if fail is not None:
            server.fail(**fail)
        process.start()
        theirs.close()
        try:
            kind, text = ours.recv() if ours.poll(START_DEADLINE_SECONDS) else ("error", "it said nothing")
        except EOFError:
            kind, text = "error", "its process ended"
        if kind == "error":
            server.close()
            raise RuntimeError(text)
        server.location = text
        return server

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.process.kill()
        self.wait()

    def lose_power(self) -> None:
        """End the process with SIGKILL; the data directory is then as after the loss of the machine's power."""
        assert self._store is not None
        self.kill()
        platter.restore(self._store, self._data_dir)

    def wait(self) -> int | None:
        """Wait for the end of the process, and return its exit code, -9 if it was killed; None if it
        goes on.
        """
        self.process.join(STOP_DEADLINE_SECONDS)
        return self.process.exitcode

    def terminate(self) -> int | None:
        """Ask for a clean end, and return the exit code."""
        self.process.terminate()
        return self.wait()

    def close(self) -> None:
        """Make sure that the process is gone; may be called twice."""
        if not self._pipe.closed:
            self._pipe.close()
            self.process.kill()
            self.process.join(STOP_DEADLINE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run(
    data_dir: Path, control: Path, store: Path | None, pipe: Connection, settings: dict[str, Any]
) -> None:
    FaultyDisk(data_dir, control, store).install()
    uvloop.run(_serve(data_dir, pipe, settings))


async def _serve(data_dir: Path, pipe: Connection, settings: dict[str, Any]) -> None:
    server = Server(config.load({"port": 0, "http_port": -1, "data_dir": data_dir, **settings}))
    try:
        await server.start()
    except OSError as error:
        await server.stop()
        pipe.send(("error", str(error)))
        return
    pipe.send(("ready", server.location))
    await asyncio.shield(server.run())
