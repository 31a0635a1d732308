"""First messages: limits the open calls whose client has not sent its request yet.

Guarantee: requests that never arrive whole take bounded memory. gRPC lets a client send a message, up to the server's
limit, once the server reads it, and shows the server nothing before the message is whole. So

* a single request is read only after the call's token was checked, at most ``READS_AT_ONCE`` at a time;
* while others wait and none of those that are read has ended for ``PROGRESS_SECONDS``, one is ended;
* a single request has a deadline;
* of more than ``MAX_UNHEARD`` calls without a first message, puts included, one is ended.

The call that is ended is the oldest of the connection with the most such calls. The one that is read next is the newest
of a connection with the fewest: many silent calls delay neither those that come after them nor other clients'.

Not counted: gRPC holds the requests that are read, at most ``READS_AT_ONCE`` messages of its limit, and one window of
each call whose request is not read.

Cancelling any of these waits is safe.
"""

from __future__ import annotations

import asyncio
from collections import Counter
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
        # The oldest call first, with its connection; a call that was told to end is in neither.
        self._unheard: dict[asyncio.Timeout, str] = {}
        self._reading: dict[asyncio.Timeout, str] = {}
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._free = READS_AT_ONCE
        self._look_at: asyncio.TimerHandle | None = None

    async def read(self, context: Context) -> bytes | None:
        """The request of a call that has one, or the next message of a handshake; None if the client has ended. Raises
        Unavailable: it has not arrived whole in time, or others needed its place.
        """
        peer = context.peer()
        async with self.unheard(peer, self._deadline_seconds) as timeout, self._turn(peer, timeout):
            request = await context.read()
        return None if request is grpc.aio.EOF else bytes(request)

    @asynccontextmanager
    async def unheard(
        self, peer: str, deadline_seconds: float | None = None
    ) -> AsyncIterator[asyncio.Timeout]:
        """The block waits for the first message of a call on the connection ``peer``. Raises Unavailable: it has lasted
        for ``deadline_seconds``, or too many other calls wait for theirs.
        """
        timeout = asyncio.timeout(deadline_seconds)
        begun = asyncio.get_running_loop().time()
        try:
            async with timeout:
                self._unheard[timeout] = peer
                try:
                    if len(self._unheard) > MAX_UNHEARD:
                        self._end_one_of(self._unheard)
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
    async def _turn(self, peer: str, timeout: asyncio.Timeout) -> AsyncIterator[None]:
        """The block reads."""
        if not self._free:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((peer, turn))
            self._watch()
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        else:
            self._free -= 1
        self._reading[timeout] = peer
        try:
            yield
        finally:
            self._reading.pop(timeout, None)
            self._pass_on()

    def _pass_on(self) -> None:
        """Give a turn that has ended to the next call."""
        self._unwatch()
        self._waiting = [each for each in self._waiting if not each[1].done()]
        if not self._waiting:
            self._free += 1
            return
        calls = Counter(self._unheard.values())
        fewest = min(reversed(self._waiting), key=lambda each: calls[each[0]])
        self._waiting.remove(fewest)
        fewest[1].set_result(None)
        self._watch()

    def _watch(self) -> None:
        if self._look_at is None and self._waiting:
            self._look_at = asyncio.get_running_loop().call_later(PROGRESS_SECONDS, self._look)

    def _unwatch(self) -> None:
        if self._look_at is not None:
            self._look_at.cancel()
            self._look_at = None

    def _look(self) -> None:
        self._look_at = None
        if self._reading and any(not turn.done() for _, turn in self._waiting):
            self._end_one_of(self._reading)
        self._watch()

    def _end_one_of(self, open_: dict[asyncio.Timeout, str]) -> None:
        calls = Counter(self._unheard.values())
        timeout = max(open_, key=lambda each: calls[open_[each]])  # the first of those
        self._unheard.pop(timeout, None)
        self._reading.pop(timeout, None)
        if not timeout.expired():
            timeout.reschedule(asyncio.get_running_loop().time())
