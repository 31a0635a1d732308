"""Background: tasks that belong to the server and to no request, and threads for blocking work.

Guarantee: no request's cancellation ends a task, an exception ends no duty, and when :meth:`Background.stop` has
returned, no task of this object runs.

Tasks
    This object holds its tasks until they end, because the loop holds them only weakly. A started task reports
    failures to the readers of its work. An exception that leaves it is a bug, which is logged and counted.

Duties
    Each duty runs in a task of its own. An exception is logged and counted under the duty's name, and the duty runs
    again after a pause, which doubles with each failure in a row from ``MIN_BACKOFF_SECONDS`` to
    ``MAX_BACKOFF_SECONDS``.

Ticks
    Periodic duties share their moments, so that an idle process wakes for all of them at once. A wake-up of an idle
    server takes about 0.1 ms of CPU time, and what a duty does then mostly less. A duty that looks more often than at
    each tick does so only while it has something to do.

Slots
    A pull of a file holds one of the ``slots``, because no account counts what a decoder holds (see
    ``kinds.source.formats``).
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

SLOTS = 4
MIN_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
TICK_SECONDS = 0.25

T = TypeVar("T")


def seconds_to_tick(every_seconds: float = TICK_SECONDS) -> float:
    """From now to the next multiple of ``every_seconds``, a multiple of ``TICK_SECONDS``, on the loop's clock; to the
    one after it if that is so near that a timer may have come early.
    """
    left = every_seconds - asyncio.get_running_loop().time() % every_seconds
    return left if left > 0.1 * TICK_SECONDS else left + every_seconds


class Background:
    """Owns the server's tasks, duties and threads. ``log_error`` is called with an event's name and facts."""

    def __init__(self, log_error: Callable[..., object]) -> None:
        self._log_error = log_error
        self.slots = asyncio.Semaphore(SLOTS)
        # By duty, since the start; started tasks count together as "task".
        self.failures: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._duties: set[asyncio.Task[None]] = set()
        # One more than the slots, so that pulls of files leave a thread to other work.
        self._threads = ThreadPoolExecutor(max_workers=SLOTS + 1, thread_name_prefix="flight-server-source")

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(
        self, work: Callable[[], Awaitable[None]], name: str, *, every_seconds: float | None = None
    ) -> None:
        """Run a duty until :meth:`stop`: ``every_seconds`` after it last ended, or, from ``TICK_SECONDS`` on, at the
        next multiple of them on the loop's clock. With None it ends with its first call that does not raise.
        """
        duty = asyncio.get_running_loop().create_task(self._keep(work, name, every_seconds), name=name)
        self._duties.add(duty)
        duty.add_done_callback(self._duties.discard)

    async def _keep(
        self, work: Callable[[], Awaitable[None]], name: str, every_seconds: float | None
    ) -> None:
        backoff_seconds = MIN_BACKOFF_SECONDS
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001  # no exception ends a duty; it is logged and counted
                self.failures[name] += 1
                # As text: a log that renders variables would print messages and keep their reservations.
                self._log_error("duty_failed", duty=name, traceback=traceback.format_exc())
                await asyncio.sleep(backoff_seconds)
                backoff_seconds = min(2 * backoff_seconds, MAX_BACKOFF_SECONDS)
            else:
                if every_seconds is None:
                    return
                backoff_seconds = MIN_BACKOFF_SECONDS
                often = every_seconds < TICK_SECONDS
                await asyncio.sleep(every_seconds if often else seconds_to_tick(every_seconds))

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """The result of blocking work in a thread. Cancelling does not end work that has begun."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def stop(self) -> None:
        """Cancel every task; wait for them and the threads. Twice is fine."""
        while tasks := self._tasks | self._duties:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self.failures["task"] += 1
            self._log_error("background_task_failed", task=task.get_name(), exc_info=bug)
