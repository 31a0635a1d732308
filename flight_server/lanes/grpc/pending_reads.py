"""PendingReads: the calls that wait for a message of their client, and what has come of these messages.

Guarantee: messages that never arrive whole take bounded memory, and delay no other call. gRPC lets a client send a
message, up to the server's limit, once the server reads it, and shows the server nothing before it is whole. So

* a request is read only after the call's token was checked;
* what has come on a connection (``connection_bytes``), and was not taken as messages, is counted in ``arriving``, which
  ends all calls that wait for a message on a connection;
* a call without its first message ends when no ``GROWTH_BYTES`` have come on its connection for ``stall_seconds``;
* of more than ``MAX_UNHEARD`` calls without a first message, one is ended: the oldest of the connection whose calls
  have waited for the most seconds together. So silent calls on many connections end no others, either.

So any number of calls are read at once, however slowly their messages come.

Counting
    A look every ``LOOK_SECONDS`` asks for the bytes of each connection on which a read lasts for longer; of one on
    which nothing came since, less and less often, unless the process has grown by ``GROWN_BYTES``. Bytes that are no
    message (frames of HTTP/2, of TLS, a message that was given up) are estimated, and forgotten when no call of the
    connection waits. Not counted: what comes between two looks.

Freed
    gRPC frees what a call has not taken when the call ends, and does not say how much. So all by which the connection
    has grown since that call began is taken for freed. It may in truth belong to another call, so it is counted again
    once the process has grown by more than ``arriving`` allows, and by the holes of a heap, beyond its accounts.

Cancelling any of these waits is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from flight_server.memory import MAX_HOLES_BYTES, resident_bytes
from flight_server.protocol import Unavailable
from flight_server.transfer import Arriving, too_much

from .connection_bytes import ConnectionBytes

MAX_UNHEARD = 500
LOOK_SECONDS = 0.02
QUIET_LOOK_SECONDS = 0.1
MAX_PAUSE_SECONDS = 1.0
GROWN_BYTES = 4 << 20
GROWTH_BYTES = 1 << 10
LATE_SECONDS = 0.5
"""For so long come bytes of a call that has ended: its client has not heard of it."""
LOOKS_AT_ONCE = 200
"""Connections that are looked at in one step: each takes some 10 µs."""
_CALL_BYTES = 512  # head, window updates and pings of a call
_MESSAGE_BYTES = 64

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types


@dataclass(slots=True, eq=False)
class PendingRead:
    """One call's wait for its ``first`` message, or for a later one. ``why``: makes the error of one that was ended."""

    _connection: _Connection
    timeout: asyncio.Timeout
    first: bool
    stalls: bool = False  # its timeout begins again when bytes come
    begun_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    why: Callable[[], Unavailable] | None = None

    async def message(self, context: Context) -> bytes | None:
        """The call's next message; None if the client has ended."""
        message = await context.read()
        if message is grpc.aio.EOF:
            return None
        self._connection.gone_bytes += len(message) + len(message) // 256 + _MESSAGE_BYTES
        return bytes(message)

    def end(self, why: Callable[[], Unavailable]) -> None:
        if self.why is None:
            self.why = why
            if not self.timeout.expired():
                self.timeout.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        """Raise Unavailable if it was ended."""
        if self.why is not None:
            raise self.why()


class _Connection:
    """One connection's pending reads, the oldest first."""

    def __init__(self, peer: str, arriving: Arriving) -> None:
        self.peer = peer
        self.reads: dict[PendingRead, None] = {}
        self.unheard = 0
        self.unheard_since = 0.0  # the sum of the times at which these have begun
        self.gone_bytes = 0  # of what has come: taken as messages, or never part of one
        self.freed_bytes = 0  # of what has come: see "Freed"
        self.freed_above_bytes: int | None = None  # since a call has ended: what was counted when it began
        self.freed_until = 0.0
        self.received_bytes = 0  # at the last look
        self.grown_bytes = 0  # at the last look at which it had grown enough
        self.look_at = 0.0
        self.pause_seconds = LOOK_SECONDS
        self.body = arriving.body(self.end)

    def end(self) -> None:
        for read in list(self.reads):
            read.end(too_much)
        self.gone_bytes, self.freed_bytes = self.received_bytes, 0

    def free(self, *, believed: bool, now: float) -> None:
        """Take for freed what calls that have ended may have left."""
        if self.freed_above_bytes is not None:
            counted_bytes = self.received_bytes - self.gone_bytes - self.freed_bytes
            self.freed_bytes += max(0, counted_bytes - self.freed_above_bytes)
            if now >= self.freed_until:
                self.freed_above_bytes = None
        if not believed:
            self.freed_bytes = 0
        self.freed_bytes = min(self.freed_bytes, self.received_bytes - self.gone_bytes)


class PendingReads:
    """The reads of one server. ``stall_seconds``: see above."""

    def __init__(self, arriving: Arriving, stall_seconds: float) -> None:
        self._arriving = arriving
        self._stall_seconds = stall_seconds
        self._bytes = ConnectionBytes()
        # Of those that are there, and were seen lately: a look forgets the others.
        self._connections: dict[str, _Connection] = {}
        # With a pending read, or one that has ended since the last look.
        self._to_look: dict[_Connection, None] = {}
        self._unheard = 0
        self._timer: asyncio.TimerHandle | None = None
        self._resident_bytes = 0
        self._settled_bytes: int | None = None  # resident beyond the accounts, at the first look
        self._prune_above = 1000

    async def request(self, context: Context) -> bytes | None:
        """A call's request; None if the client has ended. Raises Unavailable: it has not come in time, or was ended."""
        read = None
        try:
            async with asyncio.timeout(self._stall_seconds) as timeout:
                peer = context.peer()
                with self.frees(peer), self.pending(peer, timeout, first=True) as read:
                    read.stalls = True
                    return await read.message(context)
        except TimeoutError:
            if read is None or not timeout.expired():
                raise
            read.check()
            raise Unavailable(
                f"the first message of this call has not arrived whole, and less than {GROWTH_BYTES} bytes came within "
                f"{self._stall_seconds:g} s (--stall-seconds); call again, and send it at once"
            ) from None

    @contextmanager
    def frees(self, peer: str) -> Iterator[None]:
        """The block takes messages of a call. When it raises, the call ends, and gRPC frees what was not taken."""
        connection = self._connection(peer)
        counted_bytes = connection.body.size_bytes
        try:
            yield
        except BaseException:
            if connection.freed_above_bytes is not None:
                counted_bytes = min(counted_bytes, connection.freed_above_bytes)
            connection.freed_above_bytes = counted_bytes
            connection.freed_until = asyncio.get_running_loop().time() + LATE_SECONDS
            raise

    def _connection(self, peer: str) -> _Connection:
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection(peer, self._arriving)
        return connection

    @contextmanager
    def pending(self, peer: str, timeout: asyncio.Timeout, *, first: bool = False) -> Iterator[PendingRead]:
        """The block, inside of ``timeout``, waits for a message of a call on the connection ``peer``, the ``first`` one
        of the call or a later one. When it raises TimeoutError, call the read's ``check``.
        """
        connection = self._connection(peer)
        read = PendingRead(connection, timeout, first)
        connection.reads[read] = None
        self._to_look[connection] = None
        if first:
            connection.gone_bytes += _CALL_BYTES
            connection.unheard += 1
            connection.unheard_since += read.begun_at
            self._unheard += 1
            if self._unheard > MAX_UNHEARD:
                self._end_one_unheard()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        try:
            yield read
        finally:
            del connection.reads[read]
            self._hear(connection, read)

    def _hear(self, connection: _Connection, read: PendingRead) -> None:
        if read.first:
            read.first = False
            connection.unheard -= 1
            connection.unheard_since = connection.unheard and connection.unheard_since - read.begun_at
            self._unheard -= 1

    def _end_one_unheard(self) -> None:
        now = asyncio.get_running_loop().time()
        most = max(
            self._connections.values(),
            key=lambda each: (each.unheard * now - each.unheard_since, each.unheard),
        )
        oldest = next(read for read in most.reads if read.first)
        self._hear(most, oldest)
        oldest.end(_too_many)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        finds = self._bytes.begin_look(now)
        resident = resident_bytes()
        beyond_bytes = resident - self._arriving.memory.used_bytes
        if self._settled_bytes is None:
            self._settled_bytes = beyond_bytes
        beyond_bytes -= self._settled_bytes
        believed = beyond_bytes <= 2 * self._arriving.limit_bytes + MAX_HOLES_BYTES
        grown = resident - self._resident_bytes >= GROWN_BYTES
        if grown or resident < self._resident_bytes:
            self._resident_bytes = resident
        looked = 0
        for connection in list(self._to_look):
            if looked == LOOKS_AT_ONCE:
                break
            oldest = next(iter(connection.reads), None)
            if oldest is not None and now - oldest.begun_at < LOOK_SECONDS:
                continue
            if oldest is not None and now < connection.look_at and not grown:
                continue
            if not connection.received_bytes and not finds:
                continue  # it is new
            looked += 1
            del self._to_look[connection]
            if self._look_at(connection, now, believed=believed):
                self._to_look[connection] = None  # the last one, so that each has its turn
        if len(self._connections) > self._prune_above:
            self._prune()
        if self._to_look:
            pause = LOOK_SECONDS if looked else QUIET_LOOK_SECONDS
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _look_at(self, connection: _Connection, now: float, *, believed: bool) -> bool:
        """Count what has come; whether the connection is to be looked at again."""
        received = self._bytes.received(connection.peer)
        if received is None:
            connection.body.hold(0)
            connection.look_at = now + MAX_PAUSE_SECONDS
            if not connection.reads:
                self._forget(connection)
            return bool(connection.reads)
        if received < connection.received_bytes:  # another connection of that name
            connection.gone_bytes = len(connection.reads) * _CALL_BYTES
            connection.grown_bytes = connection.freed_bytes = 0
        if received > connection.received_bytes:
            connection.pause_seconds = LOOK_SECONDS
        else:
            connection.pause_seconds = min(MAX_PAUSE_SECONDS, 2 * connection.pause_seconds)
        connection.received_bytes, connection.look_at = received, now + connection.pause_seconds
        if not connection.reads:
            connection.freed_above_bytes = None
        if not connection.reads or connection.gone_bytes > received:
            connection.gone_bytes = received
        if received - connection.grown_bytes >= GROWTH_BYTES:
            connection.grown_bytes = received
            for read in connection.reads:
                if read.stalls and read.why is None and not read.timeout.expired():
                    read.timeout.reschedule(now + self._stall_seconds)
        connection.free(believed=believed, now=now)
        connection.body.hold(received - connection.gone_bytes - connection.freed_bytes)
        return bool(connection.reads)

    def _forget(self, connection: _Connection) -> None:
        del self._connections[connection.peer]
        connection.body.close()

    def _prune(self) -> None:
        """Forget the connections that are there no more."""
        for connection in list(self._connections.values()):
            if connection not in self._to_look and self._bytes.received(connection.peer) is None:
                self._forget(connection)
        self._prune_above = max(1000, 2 * len(self._connections))


def _too_many() -> Unavailable:
    return Unavailable(
        f"more than {MAX_UNHEARD} calls wait for their first message, and this one was the oldest of the connection "
        "whose calls have waited for longest; call again, and send it at once"
    )
