"""Slices: how a long answer is made while the streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

AT_ONCE = 500
"""Things that are looked at before the loop has its turn: about a millisecond's work."""

T = TypeVar("T")


async def in_slices(things: Iterable[T], at_once: int = AT_ONCE) -> AsyncGenerator[T, None]:
    """The things in their order; other tasks run after every ``at_once`` of them.

    ``things`` must not change while this iterates: pass a copy of what others may change.
    """
    for number, thing in enumerate(things, 1):
        yield thing
        if number % at_once == 0:
            await asyncio.sleep(0)
