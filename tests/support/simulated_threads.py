"""Threads, queues, pools and a clock that a :class:`~tests.support.chains.Schedule` drives.

A thread is a real one, of which one runs at a time: it goes on when the schedule takes its chain's next step, and stops
where it would wait. So code that is written for threads runs in each order that the schedule chooses, and in the same
one for the same seed.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Generic, Self, TypeVar

from .chains import FIRST, Chain, Gate, Schedule

T = TypeVar("T")
U = TypeVar("U")


class Killed(BaseException):
    """The process of the thread has ended."""


class SimulatedThread:
    """What stands for ``threading.Thread``. ``error`` is what its function has raised."""

    def __init__(self, threads: SimulatedThreads, function: Callable[[], object], name: str) -> None:
        self.name = name
        # What the driver does by the clock is not late because of other threads.
        is_prompt = name == "leases" or (threads.current is not None and threads.current.priority == FIRST)
        self.priority: float | None = FIRST if is_prompt else None
        self.ended = threads.schedule.gate()
        self.error: BaseException | None = None
        self._interruption: BaseException | None = None
        self._threads = threads
        self._function = function
        self._event: str | Gate = ""
        self._is_begun = False
        self._may_go = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)

    def start(self) -> None:
        self._threads.schedule.begin(self._chain(), self.priority)
        self._threads.living.append(self)

    def is_alive(self) -> bool:
        return not self.ended.is_open

    def join(self, timeout: float | None = None) -> None:
        if timeout is not None:
            self._threads.wait_seconds(timeout, self.ended)
        else:
            self._threads.wait(self.ended)

    def stop(self, event: str | Gate) -> None:
        """Called in the thread: it goes on at the chain's next step, and not before the gate is open."""
        self._event = event
        self._has_stopped.release()
        self._may_go.acquire()
        if self._threads.is_killed:
            raise Killed
        error, self._interruption = self._interruption, None
        if error is not None:
            raise error

    def interrupt(self, error: BaseException) -> None:
        """Raise the error where the thread goes on next, which is soon; never if it has ended."""
        self._interruption = error
        if isinstance(self._event, Gate):
            self._event.wake()

    def _chain(self) -> Chain:
        self._is_begun = True
        threading.Thread(target=self._run, name=self.name, daemon=True).start()
        while self.is_alive() and self._goes_on():
            yield self._event

    def _goes_on(self) -> bool:
        """Whether it has stopped, and not ended."""
        self._threads.current, before = self, self._threads.current
        self._may_go.release()
        self._has_stopped.acquire()
        self._threads.current = before
        return self.is_alive()

    def _run(self) -> None:
        self._may_go.acquire()
        try:
            if not self._threads.is_killed:
                self._function()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - who waits for the thread looks at it
            self.error = error
        self._threads.living.remove(self)
        self.ended.open()
        self._has_stopped.release()

    def end(self) -> None:
        """Let it end, after the schedule and by :class:`Killed`."""
        if not self._is_begun:
            self.ended.open()
            self._threads.living.remove(self)
        while self.is_alive():
            self._goes_on()


class SimulatedThreads:
    """All of one process."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.current: SimulatedThread | None = None
        self.living: list[SimulatedThread] = []
        self.is_killed = False
        threads = self

        class Thread(SimulatedThread):
            def __init__(self, *, target: Callable[[], object], name: str, daemon: bool = True) -> None:
                del daemon
                super().__init__(threads, target, name)

        class SimpleQueue(_Queue[Any]):
            def __init__(self) -> None:
                super().__init__(threads)

        class ThreadPoolExecutor(_Pool):
            def __init__(self, workers: int, name: str) -> None:
                del workers
                super().__init__(threads, name)

        self.names = {
            "time": SimpleNamespace(monotonic=lambda: schedule.now_seconds),
            "threading": SimpleNamespace(
                Lock=threading.Lock, Thread=Thread, current_thread=lambda: self.current
            ),
            "queue": SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty),
            "ThreadPoolExecutor": ThreadPoolExecutor,
        }
        """What takes the place of these names in a module."""

    def begin(self, function: Callable[[], object], name: str) -> SimulatedThread:
        thread = SimulatedThread(self, function, name)
        thread.start()
        return thread

    def step(self, event: str) -> None:
        """Other chains may go on before this thread does."""
        self.check()
        assert self.current is not None
        self.current.stop(event)

    def wait(self, gate: Gate) -> None:
        """Raises Killed, and what interrupts the thread."""
        self.check()
        assert self.current is not None
        while not gate.is_open:
            self.current.stop(gate)

    def wait_seconds(self, seconds: float, gate: Gate | None = None) -> None:
        """Wait for the gate, at most for so long."""
        until = self.schedule.pause(seconds)
        if gate is not None:
            self.schedule.begin(_opening(gate, until), FIRST)
        self.wait(until)

    def check(self) -> None:
        """Raise Killed."""
        if self.is_killed:
            raise Killed

    def kill(self) -> None:
        """The process ends: each thread does where it goes on next, and makes no more calls."""
        self.is_killed = True

    def close(self) -> None:
        """No thread stays, whatever the schedule has come to."""
        self.kill()
        while self.living:
            self.living[-1].end()


def _opening(gate: Gate, other: Gate) -> Chain:
    while not gate.is_open:
        yield gate
    other.open()


class _Queue(Generic[T]):
    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._items: deque[T] = deque()
        self._filled = threads.schedule.gate()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._filled.open()

    def get(self, timeout: float | None = None) -> T:
        if not self._items:
            self._filled = self._threads.schedule.gate()
            if timeout is None:
                self._threads.wait(self._filled)
            else:
                self._threads.wait_seconds(timeout, self._filled)
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class _Pool:
    def __init__(self, threads: SimulatedThreads, name: str) -> None:
        self._threads = threads
        self._name = name
        self._workers: list[SimulatedThread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._workers:
            each.join()

    def map(self, function: Callable[[U], T], items: Iterable[U]) -> Iterator[T]:
        results: dict[int, T] = {}

        def work(number: int, item: U) -> None:
            results[number] = function(item)

        for number, item in enumerate(items):
            self._workers.append(self._threads.begin(lambda n=number, i=item: work(n, i), self._name))  # type: ignore[misc]
        for number, worker in enumerate(self._workers):
            worker.join()
            if worker.error is not None:
                raise worker.error
            yield results[number]
