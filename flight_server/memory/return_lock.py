"""ReturnLock: a lock inside which bytes are counted, and the bytes that finalizers give back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

P = TypeVar("P")


class ReturnLock(Generic[P]):
    """A thread may enter it again.

    :meth:`give_back` waits for no lock, so a finalizer may call it, in any thread, inside any lock that the thread
    holds. The bytes are counted before it returns or, while a thread is inside this lock, when that thread leaves it;
    never in the middle of a step inside.

    Args:
        add: counts bytes of a pool; called inside.
        counted: called after bytes of that pool were given back and counted, outside.
    """

    __slots__ = ("_add", "_counted", "_depth", "_lock", "_returned")

    def __init__(self, add: Callable[[P, int], None], counted: Callable[[P], None]) -> None:
        self._add = add
        self._counted = counted
        self._lock = threading.RLock()
        self._depth = 0  # how often the thread inside has entered
        self._returned: deque[tuple[P, int]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        self._lock.release()
        if self._returned:
            self._settle()

    def give_back(self, pool: P, size_bytes: int) -> None:
        self._returned.append((pool, size_bytes))
        self._settle()

    def count(self) -> list[P]:
        """Count the bytes given back; the pools that got them. The caller is inside."""
        found = []
        while self._returned:
            pool, size_bytes = self._returned.popleft()
            self._add(pool, -size_bytes)
            found.append(pool)
        return found

    def _settle(self) -> None:
        lock = self._lock
        # A thread that is inside looks again after it has left: it then sees everything appended until then.
        while self._returned and lock.acquire(blocking=False):
            if self._depth:
                lock.release()
                return
            self._depth = 1
            pool = None
            try:
                if self._returned:  # else another thread has just counted it
                    pool, size_bytes = self._returned.popleft()
                    self._add(pool, -size_bytes)
            finally:
                self._depth = 0
                lock.release()
            if pool is not None:
                self._counted(pool)
