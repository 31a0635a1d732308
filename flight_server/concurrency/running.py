"""Running: the calls that are being served, so that a drain can wait for them and end them with a reason.

A call that is ended gets :class:`~flight_server.protocol.Draining` at its await: its ``finally``
blocks run, and its client gets the reason, which gRPC's own shutdown does not give.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flight_server.protocol import Draining


class Running:
    """The calls of one server; one event loop."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Timeout] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._calls)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Count the block as a running call. Raises Draining if :meth:`end` has ended it."""
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._calls.add(timeout)
                try:
                    yield
                finally:
                    self._calls.discard(timeout)
                    self._changed.set()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Draining(
                "the server is going down and has ended this stream; read on from the next frame, or write again, "
                "when it is back or elsewhere"
            ) from None

    async def end(self, grace_seconds: float) -> None:
        """Wait until no call runs, at most ``grace_seconds``; then end those that do."""
        try:
            async with asyncio.timeout(grace_seconds):
                while self._calls:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            now = asyncio.get_running_loop().time()
            for timeout in list(self._calls):
                timeout.reschedule(now)
