"""A server whose event loop notes how late it wakes up: ``python -m …watched_server DATA_DIR``, on uvloop.

It prints its location, and answers each line of its input with what it has noted since the last one, both in JSON. It
ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy as np
import uvloop

from flight_server import config
from flight_server.host import shorten_pauses
from flight_server.memory import allocator
from flight_server.server import Server

EVERY_SECONDS = 0.001


class Watch:
    """Wakes up again and again while the loop runs."""

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._began = time.perf_counter()
        self._next()

    def _next(self) -> None:
        self._due = time.perf_counter() + EVERY_SECONDS
        asyncio.get_running_loop().call_later(EVERY_SECONDS, self._wake)

    def _wake(self) -> None:
        self._late_ms.append((time.perf_counter() - self._due) * 1e3)
        self._next()

    def noted(self) -> dict[str, Any]:
        """What was noted since the last call."""
        late, self._late_ms = np.array(self._late_ms), []
        seconds, self._began = time.perf_counter() - self._began, time.perf_counter()
        return {
            "seconds": seconds,
            "count": len(late),
            "over_1_ms": int((late > 1).sum()),
            "over_5_ms": int((late > 5).sum()),
            "p999_ms": float(np.percentile(late, 99.9)),
            "max_ms": float(late.max()),
        }


async def serve(settings: config.Settings, *, tuned: bool) -> None:
    """Be the server."""
    async with Server(settings, tuned=tuned) as server:
        watch = Watch()
        print(json.dumps({"location": server.location}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(watch.noted()), flush=True)


if __name__ == "__main__":
    chosen = config.load({"port": 0, "http_port": 0, "data_dir": sys.argv[1]})
    shorten_pauses()
    uvloop.run(serve(chosen, tuned=allocator.tune(int(chosen.memory_limit))))
