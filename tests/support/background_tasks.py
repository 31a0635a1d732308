"""The tasks that a ``Background`` has started."""

from __future__ import annotations

import asyncio

from flight_server.concurrency import Background


def count(background: Background) -> int:
    """How many run."""
    return len(background._tasks)


async def idle(background: Background) -> None:
    """Return when every one has ended, also those that tasks have started."""
    while background._tasks:
        await asyncio.wait(background._tasks)
