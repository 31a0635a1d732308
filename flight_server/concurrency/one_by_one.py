"""OneByOne: an executor that runs its work in the threads of another one, one piece after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class OneByOne(Executor):
    """Uses at most one of those threads. Each piece of work queues behind the work that others have given the threads
    meanwhile, so of several such executors each waits only for the present pieces of the others.

    Work that is left when the threads end is not run: no task waits for it by then.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if not self._running:
                self._threads.submit(self._next)
                self._running = True
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def _next(self) -> None:
        with self._lock:
            future, work = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  # it belongs to the caller
                future.set_exception(error)
            else:
                future.set_result(result)
        with self._lock:
            self._running = bool(self._waiting)
            if self._running:
                self._threads.submit(self._next)
