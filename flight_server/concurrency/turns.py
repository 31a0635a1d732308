"""Turns: limits how much each pass of the event loop hands to the transports.

Guarantee: each pass lets readers through, first come, first served, until they have ``TURN_BYTES`` together; the last
of them may go beyond. No reader waits while something of the turn is left, and the last of n readers waits for at
most n passes, or 2n if every second turn goes to the newest.

Why
    A write of 1 MiB takes a quarter of a millisecond and more, and gRPC's asyncio server needs several passes to
    accept one call. If each pass wrote once for every reader, of many readers that come at once the last would begin
    when the first have ended.

Who takes turns
    The frames of the gRPC lane, and the beginnings of reads on the HTTP lane, which accepts any number of connections
    in one pass. Its frames take none: without turns the slowest of 400 readers in one Python process took 1.9 times the
    median, with turns all took a fifth longer.

Size of a message
    The bytes of a frame, but at least ``MESSAGE_COST_BYTES``: about what handling a message costs, in bytes copied.
    ``waits`` lists no turn, because it ends by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque

TURN_BYTES = 1 << 20
MESSAGE_COST_BYTES = 64 << 10


class Turns:
    """The turns of one event loop. With ``both_ends`` every second one goes to the newest reader: in a crowd that comes
    at once, one that comes last, or after an earlier call, need not wait for the whole crowd.
    """

    def __init__(self, *, both_ends: bool = False) -> None:
        self._both_ends = both_ends
        self._newest_next = both_ends
        self._left_bytes = TURN_BYTES
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        self._renewing = False

    async def take(self, size_bytes: int) -> None:
        """Return when this pass of the loop may write a message of ``size_bytes``.

        Cancelling is safe, but a granted turn is lost for this pass.
        """
        cost_bytes = max(size_bytes, MESSAGE_COST_BYTES)
        if self._left_bytes > 0 and not self._queue:
            self._spend(cost_bytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, cost_bytes))
        await turn

    def _spend(self, cost_bytes: int) -> None:
        self._left_bytes -= cost_bytes
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._renewing = False
        self._left_bytes = TURN_BYTES
        while self._queue and self._left_bytes > 0:
            turn, cost_bytes = self._queue.pop() if self._newest_next else self._queue.popleft()
            self._newest_next = self._both_ends and not self._newest_next
            if not turn.done():
                turn.set_result(None)
                self._spend(cost_bytes)
