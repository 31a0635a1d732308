"""Changes: wakes whoever waits for the next change of something, and costs nothing worth naming if nobody does.

Guarantee: :meth:`Changes.next` returns at the first :meth:`Changes.tell` after its call, for each of any
number of tasks. What has changed is not said: whoever is woken looks.

No lost wake-up
    A call of ``next`` is in the list of those who wait before it first awaits, so whoever has looked and
    found nothing in the same step, without an await between, misses no change.

Cancelling
    Cancelling ``next`` takes it off the list, and no other one notices.

Concurrency
    One event loop. ``tell`` never waits and runs nobody's code: it may stand in the middle of a change,
    because those who wait run when the step that makes it is over. With nobody waiting it looks at an
    empty set, which is why it may stand where every frame passes.
"""

from __future__ import annotations

import asyncio


class Changes:
    """See the module's text."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] | None = None  # made when somebody waits

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting or ())

    def tell(self) -> None:
        """Something has changed."""
        if self._waiting:
            waiting, self._waiting = self._waiting, None
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def next(self) -> None:
        """Return when something changes from now on. Cancelling is safe."""
        future = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = set()
        self._waiting.add(future)
        try:
            await future
        finally:
            if self._waiting is not None:
                self._waiting.discard(future)
