"""Changes: wakes the tasks that wait for the next change of something. One event loop.

Guarantee: :meth:`Changes.next` returns at the first :meth:`Changes.tell` after its call, in any number of tasks. A
woken task looks what has changed. A task that looks and calls ``next`` without an await between misses no change,
because ``next`` enters it before it first awaits.

``tell`` runs no waiting task, so it may stand in the middle of a change. It costs one branch while no task waits.
"""

from __future__ import annotations

import asyncio


class Changes:
    """See the module's text."""

    __slots__ = ("_waiting", "told")

    def __init__(self) -> None:
        self.told = 0
        """How many changes there were."""
        self._waiting: set[asyncio.Future[None]] | None = None  # made for the first task that waits

    @property
    def waiting(self) -> int:
        return len(self._waiting or ())

    def tell(self) -> None:
        self.told += 1
        if self._waiting:
            waiting, self._waiting = self._waiting, None
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def next(self) -> None:
        """Return at the next change. Cancelling is safe."""
        future = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = set()
        self._waiting.add(future)
        try:
            await future
        finally:
            if self._waiting is not None:
                self._waiting.discard(future)
