"""Things that this process has made of files of its host: each once for the whole process, and forgotten when not used.

A Spark worker that is used again outlives its tasks, and a file that it holds cannot be removed for another one. So a
thread forgets a thing ``KEEP_SECONDS`` after its last use: at the next task of a stage it is still there, in a worker
without a task it is not. An object that has the thing still reads it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .host_files import HostFile

KEEP_SECONDS = 5.0
_POLL_SECONDS = 0.5
T = TypeVar("T")


@dataclass
class _Open(Generic[T]):
    file: HostFile
    thing: T
    used: float = 0.0
    users: weakref.WeakSet[object] = field(default_factory=weakref.WeakSet)


class OpenFiles(Generic[T]):
    """The things of one process. Thread-safe; a forked child keeps its parent's.

    Args:
        name: the thread's.
        unused: called by the thread with each thing that it has forgotten because it was not used.
    """

    def __init__(self, name: str, unused: Callable[[T], object] = lambda _: None) -> None:
        self._name = name
        self._unused = unused
        self._open: dict[str, _Open[T]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def get(
        self,
        key: str,
        open_file: Callable[[], HostFile | None],
        make: Callable[[HostFile], T],
        user: object = None,
    ) -> T | None:
        """The thing of this key, used now and as long as ``user`` lives: the known one, unless its file was removed,
        or one that is made of the file that is opened now; None if there is no file. It is closed when the thing is
        forgotten, or cannot be made.
        """
        with self._lock:
            known = self._open.get(key)
            if known is not None and known.file.is_current:
                return self._use(known, user)
        if (file := open_file()) is None:
            return None
        try:
            made = _Open(file, make(file))
        except BaseException:
            file.close()
            raise
        with self._lock:
            known = self._open.get(key)
            if known is not None and known.file.is_current:  # another thread's
                file.close()
                return self._use(known, user)
            if known is not None:
                known.file.close()
            self._open[key] = made
            return self._use(made, user)

    def forget(self, key: str) -> None:
        """Close its file, if there is one."""
        with self._lock:
            if (known := self._open.pop(key, None)) is not None:
                known.file.close()

    def close(self) -> None:
        for key in list(self._open):
            self.forget(key)

    def _use(self, known: _Open[T], user: object) -> T:
        known.used = time.monotonic()
        if user is not None:
            known.users.add(user)
        if self._thread is None:  # also in a child of the process that added it
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return known.thing

    def _run(self) -> None:
        ends = False
        while not ends:
            time.sleep(_POLL_SECONDS)
            with self._lock:
                unused = self._forget_unused(time.monotonic())
                if ends := not self._open:
                    self._thread = None
            for thing in unused:
                self._unused(thing)

    def _forget_unused(self, now: float) -> list[T]:
        unused = []
        for key, known in list(self._open.items()):
            if known.users:
                known.used = now
            if known.file.is_current:
                if known.users or now - known.used < KEEP_SECONDS:
                    continue
                unused.append(known.thing)
            self._open.pop(key).file.close()
        return unused

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._thread = None
