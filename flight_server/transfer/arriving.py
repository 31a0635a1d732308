"""Arriving: what has come of requests and messages that are not whole yet, on both lanes.

Guarantee: these bytes are counted in the account ``arriving``, beside the memory limit, and are bounded by twice its
limit and what comes between two looks. Nothing waits for room there, so a client that sends slowly, or not at all,
delays no other:

* while they are above the limit, bodies of which nothing has come for ``STALLED_SECONDS`` are ended, the longest first;
* above twice the limit bodies are ended whether they grow or not, those first whose bytes times seconds are most: a
  message that comes at once is not ended for many that come slowly, however small each of these is.

The limit is 1/8 of the memory limit, but one whole message, and ``MIN_BYTES``, at least.

An ended request or put gets UNAVAILABLE, and can be made again.

Each lane says what has come of its bodies: HTTP of each message, gRPC, which shows no part of a message, of each
connection (``lanes.grpc.pending_reads``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakSet

from flight_server.memory import MemoryPool
from flight_server.protocol import Unavailable

STALLED_SECONDS = 1.0
MIN_BYTES = 32 << 20


class ArrivingBody:
    """What has come of one message, or on one connection. ``end`` ends it: then its owner raises :func:`too_much`."""

    def __init__(self, arriving: Arriving, end: Callable[[], object]) -> None:
        self._arriving = arriving
        self._room = arriving.pool.empty()
        self.end = end
        self.begun_at = self.grown_at = 0.0

    @property
    def size_bytes(self) -> int:
        return self._room.size_bytes

    def close(self) -> None:
        """Hold nothing from now on. Twice is fine."""
        self._room.free()
        self.end = lambda: None  # no reference cycle with the owner

    def hold(self, size_bytes: int) -> None:
        """So many bytes are there now. More than before may end bodies, this one too."""
        before_bytes = self._room.size_bytes
        if size_bytes <= before_bytes:
            self._room.shrink(before_bytes - size_bytes)
            return
        self.grown_at = time.monotonic()
        if not before_bytes:
            self.begun_at = self.grown_at
        self._room.grow(size_bytes - before_bytes)
        if self._arriving.excess_bytes > self._arriving.limit_bytes:
            self._arriving.look()


class Arriving:
    """The bodies that arrive at one server, of which a message has at most ``message_bytes``."""

    def __init__(self, memory: MemoryPool, message_bytes: int) -> None:
        assert memory.limit_bytes is not None
        self.limit_bytes = max(MIN_BYTES, memory.limit_bytes // 8, message_bytes)
        self.memory = memory
        self.pool = memory.account("arriving", self.limit_bytes)
        self._bodies: WeakSet[ArrivingBody] = WeakSet()

    def body(self, end: Callable[[], object]) -> ArrivingBody:
        body = ArrivingBody(self, end)
        self._bodies.add(body)
        return body

    @property
    def excess_bytes(self) -> int:
        return self.pool.used_bytes - self.limit_bytes

    def look(self) -> None:
        """End bodies as the guarantee says. ``server`` calls this twice a second."""
        if self.excess_bytes <= 0:
            return
        bodies = [body for body in self._bodies if body.size_bytes]
        now = time.monotonic()
        stalled_since = now - STALLED_SECONDS
        for body in sorted(bodies, key=lambda each: each.grown_at):
            if self.excess_bytes > 0 and body.grown_at <= stalled_since:
                self._end(body)
        for body in sorted(
            bodies,
            key=lambda each: (each.size_bytes * (each.begun_at - now), -each.size_bytes, each.grown_at),
        ):
            if self.excess_bytes > self.limit_bytes:
                self._end(body)

    def _end(self, body: ArrivingBody) -> None:
        body.hold(0)
        body.end()


def too_much() -> Unavailable:
    """The error of a call whose body was ended."""
    return Unavailable(
        "what has come of requests and messages that are not whole takes more than its room (account arriving in "
        "statistics), and this one has stopped, or is among those that have kept most of it for longest; call again, "
        "and send it at once"
    )
