"""Slices: other tasks run while a long answer is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

AT_ONCE = 500
"""Things between two passes of the event loop: about a millisecond's work."""

T = TypeVar("T")


async def in_slices(things: Iterable[T], at_once: int = AT_ONCE) -> AsyncGenerator[T, None]:
    """Yield the things; other tasks run after every ``at_once`` of them. They must not change ``things``: pass a
    copy.
    """
    for number, thing in enumerate(things, 1):
        yield thing
        if number % at_once == 0:
            await asyncio.sleep(0)
