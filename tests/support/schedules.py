"""An event loop without a clock and without I/O, whose next step is random.

Any ready callback may run next, and time moves only when none is ready. So a test runs the same code under as many
interleavings as it has seeds, and the same seed gives the same run. Work for threads
(:meth:`ScheduledLoop.executor`) is scheduled like a callback.

Limit: unlike asyncio's loops, it may run callbacks in another order than they were scheduled in. Code that works here
works there.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from functools import partial
from random import Random
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Deadlock(AssertionError):
    """Nothing can run, now or later, and the test is not at its end."""


class ScheduledLoop(asyncio.BaseEventLoop):
    """See the module's text.

    Args:
        seed: of the lot.
        each_step: called after each step; it asserts what must hold at any time.
    """

    def __init__(self, seed: int, each_step: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.random = Random(seed)
        self.each_step = each_step
        self.steps = 0
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def executor(self) -> Executor:
        """What stands for a pool of threads: each piece of work is one step of the loop."""
        return _StepExecutor(self)

    # The loop's own machinery, as BaseEventLoop and its subclasses divide it.

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and (timers[0].cancelled() or (not ready and timers)):
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._now = max(self._now, timer.when())
                ready.append(timer)
        if not ready:
            raise Deadlock(f"nothing can run after {self.steps} steps")
        place = self.random.randrange(len(ready))
        ready.rotate(-place)
        handle = ready.popleft()
        ready.rotate(place)
        if not handle.cancelled():
            self.steps += 1
            handle._run()
            del handle  # a traceback leads to this frame, and the handle perhaps to the traceback
            self.each_step()

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass


def explore(scenario: Callable[[Random], Coroutine[Any, Any, None]], schedules: int) -> None:
    """Run the scenario, which draws from the same lot, under so many schedules; one that fails names its seed."""
    for seed in range(schedules):
        loop = ScheduledLoop(seed)
        try:
            loop.run_until_complete(scenario(loop.random))
        except BaseException as error:
            error.add_note(f"schedule {seed}")
            raise
        finally:
            for task in asyncio.all_tasks(loop):
                task.get_coro().close()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            loop.close()


class _StepExecutor(Executor):
    def __init__(self, loop: ScheduledLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._loop.call_soon(_work, future, partial(fn, *args, **kwargs))
        return future


def _work(future: Future[T], work: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # what a thread raises goes to who waits for it
            future.set_exception(error)
            del future  # or the error's traceback would lead back to it, as ThreadPoolExecutor knows too
