"""Calls that are made after an object was collected.

A collector runs in any thread and between any two lines of it, also where the thread holds a lock. So a finalizer must
not wait, take a lock or start a thread: it puts its call into a queue, and a thread makes it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Call = Callable[[], object]


class AfterCollection:
    """The calls of one client, which must not raise. The first :meth:`add` starts a daemon thread."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def add(self, thing: object, call: Call) -> weakref.finalize[..., object]:
        """Make the call after ``thing`` was collected, to which it must not refer; not at the interpreter's end. The
        answer's ``detach`` takes it back.
        """
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="after-collection", daemon=True)
                self._thread.start()
        end = weakref.finalize(thing, self._calls.put, call)
        end.atexit = False
        return end

    def close(self) -> None:
        """End the thread, waiting at most 5 s for a running call. Calls to come are not made. Twice is fine."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            if thread is not threading.current_thread():
                thread.join(5.0)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # which may refer to much, while this thread waits
