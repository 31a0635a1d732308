"""Heap: what the server has freed goes back to the system.

The process keeps freed memory (``allocator``) for ``KEEP_FREED_SECONDS``: 5/4 of the most that the pool held in that
time, at most the memory limit. When more than ``MAX_HOLES_BYTES`` beyond that is resident, all that is free is
returned. The start of a process frees some, too, which :meth:`Heap.start` returns.
"""

from __future__ import annotations

import asyncio
from collections import deque

from . import allocator
from .pool import MemoryPool

LOOK_SECONDS = 0.5
KEEP_FREED_SECONDS = 10.0
MAX_HOLES_BYTES = 32 << 20


class Heap:
    """The heap of a process that runs only one server. ``memory``: the server's pool, with a limit."""

    def __init__(self, memory: MemoryPool) -> None:
        assert memory.limit_bytes is not None
        self._memory = memory
        self._limit_bytes = memory.limit_bytes
        self._settled_bytes = allocator.resident_bytes()
        self._lately_bytes: deque[int] = deque(maxlen=int(KEEP_FREED_SECONDS / LOOK_SECONDS))

    def start(self) -> None:
        """Return what the start has freed, and count from the size that the process has then."""
        allocator.give_back()
        self._settled_bytes = allocator.resident_bytes()

    async def look(self) -> None:
        """Give back what has been free for long enough: a duty of the server, every ``LOOK_SECONDS``."""
        self._lately_bytes.append(self._memory.used_bytes)
        may_hold_bytes = min(self._limit_bytes, max(self._lately_bytes) * 5 // 4)
        if allocator.resident_bytes() - self._settled_bytes - may_hold_bytes > MAX_HOLES_BYTES:
            await asyncio.to_thread(allocator.give_back)
