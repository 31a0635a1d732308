"""Changes: wakes the tasks that wait for the next change of something. One event loop."""

from __future__ import annotations

import asyncio


class Changes:
    """Wakes, in any number of tasks, each :meth:`next` at the first :meth:`tell` after its call.

    A woken task looks for the change itself. A task that looks and calls ``next`` without an await between misses none,
    because ``next`` enters the task before it first awaits. ``tell`` runs no waiting task, so it may stand in the
    middle of a change. It costs one branch while no task waits.
    """

    __slots__ = ("_waiting", "number")

    def __init__(self) -> None:
        self.number = 0
        """How many changes there were."""
        # Made for the first task that waits. Wake-ups are first come, first served.
        self._waiting: dict[asyncio.Future[None], None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting or ())

    def tell(self) -> None:
        self.number += 1
        if self._waiting:
            waiting, self._waiting = self._waiting, None
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def next(self) -> None:
        """Return at the next change. Cancelling is safe."""
        future = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = {}
        self._waiting[future] = None
        try:
            await future
        finally:
            if self._waiting is not None:
                self._waiting.pop(future, None)
