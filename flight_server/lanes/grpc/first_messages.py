"""First messages: limits the open calls whose client has not sent its request yet.

Guarantee: requests that never arrive whole take bounded memory. gRPC lets a client send a message, up to the server's
limit, once the server reads it, and shows the server nothing before the message is whole. So

* a single request is read only after the call's token was checked, at most ``READS_AT_ONCE`` at a time;
* while others wait and none of those that are read has ended for ``PROGRESS_SECONDS``, the one that was begun first
  is ended. The call that came last is read next: many silent calls do not delay those that come after them;
* a single request has a deadline;
* of more than ``MAX_UNHEARD`` calls without a first message, puts included, the oldest is ended.

Not counted: gRPC holds the requests that are read, at most ``READS_AT_ONCE`` messages of its limit, and one window of
each call whose request is not read.

Cancelling any of these waits is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from flight_server.protocol import Unavailable

MAX_UNHEARD = 500
READS_AT_ONCE = 3
PROGRESS_SECONDS = 0.5

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types


class FirstMessages:
    """The calls of one server whose first message has not come. ``deadline_seconds``: for a single request to arrive
    whole.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        # The oldest call first; a call that was told to end is in neither.
        self._unheard: dict[asyncio.Timeout, None] = {}
        self._reading: dict[asyncio.Timeout, None] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._free = READS_AT_ONCE
        self._look_at: asyncio.TimerHandle | None = None

    async def read(self, context: Context) -> bytes | None:
        """The request of a call that has one, or the next message of a handshake; None if the client has ended. Raises
        Unavailable: it has not arrived whole in time, or others needed its place.
        """
        async with self.unheard(self._deadline_seconds) as timeout, self._turn(timeout):
            request = await context.read()
        return None if request is grpc.aio.EOF else bytes(request)

    @asynccontextmanager
    async def unheard(self, deadline_seconds: float | None = None) -> AsyncIterator[asyncio.Timeout]:
        """The block waits for the first message of a call. Raises Unavailable: it has lasted for ``deadline_seconds``,
        or too many other calls wait for theirs.
        """
        timeout = asyncio.timeout(deadline_seconds)
        begun = asyncio.get_running_loop().time()
        try:
            async with timeout:
                self._unheard[timeout] = None
                try:
                    if len(self._unheard) > MAX_UNHEARD:
                        self._end(next(iter(self._unheard)))
                    yield timeout
                finally:
                    self._unheard.pop(timeout, None)
        except TimeoutError:
            if not timeout.expired():
                raise
            waited = asyncio.get_running_loop().time() - begun
            late = deadline_seconds is not None and waited >= deadline_seconds
            why = "(--stall-seconds)" if late else "while other calls waited for its place"
            raise Unavailable(
                f"the first message of this call has not arrived whole within {waited:.1f} s {why}; call again, and "
                "send it at once"
            ) from None

    @asynccontextmanager
    async def _turn(self, timeout: asyncio.Timeout) -> AsyncIterator[None]:
        """The block reads."""
        if not self._free:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self._watch()
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        else:
            self._free -= 1
        self._reading[timeout] = None
        try:
            yield
        finally:
            self._reading.pop(timeout, None)
            self._pass_on()

    def _pass_on(self) -> None:
        """Give a turn that has ended to the call that came last."""
        self._unwatch()
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                self._watch()
                return
        self._free += 1

    def _watch(self) -> None:
        if self._look_at is None and self._waiting:
            self._look_at = asyncio.get_running_loop().call_later(PROGRESS_SECONDS, self._look)

    def _unwatch(self) -> None:
        if self._look_at is not None:
            self._look_at.cancel()
            self._look_at = None

    def _look(self) -> None:
        self._look_at = None
        if self._reading and any(not turn.done() for turn in self._waiting):
            self._end(next(iter(self._reading)))
        self._watch()

    def _end(self, timeout: asyncio.Timeout) -> None:
        self._unheard.pop(timeout, None)
        self._reading.pop(timeout, None)
        if not timeout.expired():
            timeout.reschedule(asyncio.get_running_loop().time())
