"""ReturnLock: a lock inside which bytes are counted, and the bytes that finalizers give back.

Guarantee: :meth:`ReturnLock.give_back` waits for no lock, so a finalizer may call it, in any thread, inside any lock
that the thread holds. What was given back is counted before it returns or, while a thread is inside this lock, when
that thread leaves it; never in the middle of what a thread does inside.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ReturnLock(Generic[T]):
    """See the module's text. A thread may enter it again.

    Args:
        count: counts what was given back once; called inside.
        counted: called with what was counted, outside.
    """

    __slots__ = ("_count", "_counted", "_depth", "_lock", "_returned")

    def __init__(self, count: Callable[[T], None], counted: Callable[[list[T]], None]) -> None:
        self._count = count
        self._counted = counted
        self._lock = threading.RLock()
        self._depth = 0  # how often the thread inside has entered
        self._returned: deque[T] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        self._lock.release()
        if self._returned:
            self._settle()

    def give_back(self, returned: T) -> None:
        self._returned.append(returned)
        self._settle()

    def count(self) -> list[T]:
        """Count what was given back, and return it. The caller is inside."""
        found: list[T] = []
        while self._returned:
            returned = self._returned.popleft()
            self._count(returned)
            found.append(returned)
        return found

    def _settle(self) -> None:
        # A thread that is inside looks again after it has left: what is appended until then is not forgotten.
        while self._returned and self._lock.acquire(blocking=False):
            inside, self._depth = self._depth, self._depth + 1
            try:
                found = [] if inside else self.count()
            finally:
                self._depth = inside
                self._lock.release()
            if inside:
                return
            self._counted(found)
