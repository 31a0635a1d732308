"""Background: tasks that belong to the server and to no request, and the threads in which they block.

Guarantee: what was started runs to its end whoever else is cancelled, and when :meth:`Background.stop`
has returned nothing of it runs any more.

Who holds what
    The loop holds tasks only weakly, so they are held here until they have ended. A task must not
    raise: what it has to say it says to those who wait for its work, and what it raises all the same is
    a bug, which is logged.

Slots
    ``slots`` bounds how many tasks decode at the same time, because what a decoder holds is counted in
    no account; see ``source_files`` for how much that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

SLOTS = 4

T = TypeVar("T")

_log = structlog.get_logger("flight_server.background")


class Background:
    """See the module's text."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(SLOTS)
        self._tasks: set[asyncio.Task[None]] = set()
        # One more than there are slots, so that looking at a source's files waits for no decoder.
        self._threads = ThreadPoolExecutor(max_workers=SLOTS + 1, thread_name_prefix="flight-server-source")

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of the server's own."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """What blocking work returns. Cancelling does not end the thread's present step."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def idle(self) -> None:
        """Return when every task has ended that was started before this call or by one of them."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Cancel every task and wait for all of them and for their threads. Twice is fine."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            _log.error("background_task_failed", task=task.get_name(), exc_info=bug)
