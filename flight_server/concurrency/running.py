"""Running: the calls that are being served, so that a drain can wait for them and end them with a reason.

A call that is ended gets :class:`~flight_server.protocol.Draining` at its await: its ``finally``
blocks run, and its client gets the reason, which gRPC's own shutdown does not give.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from flight_server.protocol import Draining, FlightShuffleError


class Running:
    """The calls of one server; one event loop."""

    def __init__(self) -> None:
        self._calls: dict[asyncio.Timeout, object] = {}
        self._ended_for: dict[asyncio.Timeout, FlightShuffleError] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._calls)

    @asynccontextmanager
    async def call(self, of: object) -> AsyncIterator[None]:
        """Count the block as a running call. ``of``: whose it is. Raises Draining: :meth:`end` has ended it;
        FlightShuffleError: :meth:`end_of` has.
        """
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._calls[timeout] = of
                try:
                    yield
                finally:
                    del self._calls[timeout]
                    self._changed.set()
        except TimeoutError:
            if not timeout.expired():
                raise
            if (why := self._ended_for.get(timeout)) is not None:
                raise why from None
            raise Draining(
                "the server is going down and has ended this stream; read on from the next frame, or write again, "
                "when it is back or elsewhere"
            ) from None
        finally:
            self._ended_for.pop(timeout, None)

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
                if not timeout.expired():
                    timeout.reschedule(now)

    def end_of(self, those: Callable[[Any], bool], why: FlightShuffleError) -> None:
        """End the running calls of ``those`` with this error."""
        now = asyncio.get_running_loop().time()
        for timeout, of in list(self._calls.items()):
            if not timeout.expired() and those(of):
                self._ended_for[timeout] = why.fresh()
                timeout.reschedule(now)
