"""DoPut: a put over gRPC.

Guarantee: the server reads a message only while there is room for those that have arrived. A client that reads no
answers delays no other put, and its own one only at its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Self

from flight_server.datasets import Caller
from flight_server.memory import Reservation
from flight_server.protocol import ReaderTooSlow, wire
from flight_server.reporting import ServedCall
from flight_server.tiering import Reader
from flight_server.transfer import AnswerRoom, Producer, PutReceiver

from .answer_headers import send_headers
from .pending_reads import PendingReads

MAX_UNREAD_ANSWER_BYTES = 1 << 20
FREE_ANSWER_BYTES = 64 << 10
LAST_ANSWERS_SECONDS = 5.0
LOOK_SECONDS = 1.0
"""How often the deadline of a producer is looked at that a lease holds beyond the server's own."""
_ANSWER_COST_BYTES = 160  # of keeping one, however short it is

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types


async def take_put(
    puts: PutReceiver, reads: PendingReads, context: Context, caller: Caller, call: ServedCall
) -> None:
    """Take the put of one call. Raises FlightShuffleError: see :meth:`PutReceiver.receive`, :class:`PendingReads`."""
    call.producer = producer = puts.producer(caller)
    with reads.frees(producer.peer):
        async with (
            GrpcAnswers(context, puts.answer_room, producer) as answers,
            aclosing(_messages(context, producer, reads, answers)) as messages,
        ):
            await puts.receive(messages, producer, answers)


async def _messages(
    context: Context, producer: Producer, reads: PendingReads, answers: GrpcAnswers
) -> AsyncGenerator[bytes, None]:
    """The client's messages, until the client ends them or the call breaks off.

    gRPC's own iterator would hold each message until the next has come.
    """
    await producer.room()
    message = await _next_message(context, producer, reads, answers, first=True)
    while message is not None:
        cell = [message]
        del message
        yield cell.pop()  # this generator keeps no reference to a yielded message
        await producer.room()
        message = await _next_message(context, producer, reads, answers)


async def _next_message(
    context: Context, producer: Producer, reads: PendingReads, answers: GrpcAnswers, *, first: bool = False
) -> bytes | None:
    read = None
    try:
        with producer.awaited() as wait:
            async with asyncio.timeout(None) as answers.reading:
                with (
                    _Silence(producer, wait, answers.reading),
                    reads.pending(producer.peer, answers.reading, first=first) as read,
                ):
                    return await read.message(context)
    except TimeoutError:
        answers.check()
        if read is not None:
            read.check()
        raise producer.stalled(inside=False) from None


class _Silence:
    """In the block ``reading`` ends when the producer is overdue, whose deadline may move meanwhile. No closure: that
    would refer to itself, and so keep what has come until a collection.
    """

    def __init__(self, producer: Producer, wait: int, reading: asyncio.Timeout) -> None:
        self._producer = producer
        self._wait = wait
        self._reading = reading
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._looking: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._producer.idle_seconds is not None:
            self._looking = self._loop.call_later(self._producer.idle_seconds, self._look)

    def __exit__(self, *exc: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look(self) -> None:
        if not self._producer.is_overdue(self._wait, self._loop.time() - self._since):
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
        elif not self._reading.expired():
            self._reading.reschedule(self._loop.time())


class GrpcAnswers:
    """Sends PutResults. Of those that the client has not read, the last ``FREE_ANSWER_BYTES`` are kept, and always the
    last one; up to ``MAX_UNREAD_ANSWER_BYTES`` if ``answers`` has room for the rest.

    A client that takes none of its large echoes is ended when others wait for their room (see ``answer_room``).
    """

    def __init__(self, context: Context, answer_room: AnswerRoom, producer: Producer) -> None:
        self.checksum = None  # this lane has none for each message; a commit may have one for all
        self.reading: asyncio.Timeout | None = None  # of the wait for the client's next message
        self._context = context
        self._answer_room = answer_room
        self._producer = producer
        self._queue: deque[tuple[bytes, Reservation | None]] = deque()
        self._queued_bytes = 0
        self._room = answer_room.pool.empty()  # of the queued answers beyond ``FREE_ANSWER_BYTES``
        self._used = False
        self._more = asyncio.Event()
        self._sent = asyncio.Event()  # all that was queued has been written
        self._headed = False
        self._ended = False
        self._task: asyncio.Task[None] | None = None
        self._failure: ReaderTooSlow | None = None

    def put(self, metadata: bytes, room: Reservation | None = None) -> None:
        self.check()
        self._used = True
        self._sent.clear()
        self._queue.append((metadata, room))
        self._queued_bytes += _ANSWER_COST_BYTES + (0 if room is not None else len(metadata))
        kept = 1 if metadata else 2  # the empty one at the end takes no other's place
        while not self._has_room() and len(self._queue) > kept:
            self._take()  # the client reads no answers
        self._more.set()

    def check(self) -> None:
        """Raise ReaderTooSlow if the client was ended because it takes no answers."""
        if self._failure is not None:
            raise self._failure.fresh()
        if self._task is not None and self._task.done():
            self._task.result()

    def _has_room(self) -> bool:
        beyond_bytes = max(0, self._queued_bytes - FREE_ANSWER_BYTES) - self._room.size_bytes
        if beyond_bytes <= 0:
            self._room.shrink(-beyond_bytes)
            return True
        return self._queued_bytes <= MAX_UNREAD_ANSWER_BYTES and self._room.try_grow(beyond_bytes)

    async def confirm_end(self) -> None:
        """After the end of the requests: return if the client has ended them; on a broken call this is cancelled.

        When a call breaks off, grpc.aio reports the end of the requests before it cancels. An operation begun in
        between fails, so one that succeeds proves that the client has ended them: sending the headers, or an empty
        PutResult after other answers. If the client does not read, that PutResult is pending; not to have failed after
        ``LAST_ANSWERS_SECONDS`` is proof enough.
        """
        if not self._used:
            self._headed = True
            await send_headers(self._context)
            return
        assert self._task is not None
        self.put(b"")
        sent = asyncio.ensure_future(self._sent.wait())
        try:
            await asyncio.wait(
                [self._task, sent], timeout=LAST_ANSWERS_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            sent.cancel()
        self.check()

    async def _finish(self) -> None:
        """Send the queued answers and no more; give up after ``LAST_ANSWERS_SECONDS``."""
        assert self._task is not None
        self._ended = True
        self._more.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_ANSWERS_SECONDS):
                await asyncio.shield(self._task)

    def _take(self) -> tuple[bytes, Reservation | None]:
        metadata, room = self._queue.popleft()
        self._queued_bytes -= _ANSWER_COST_BYTES + (0 if room is not None else len(metadata))
        return metadata, room

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._write())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        assert self._task is not None
        try:
            # Also before an error: gRPC cannot send its status once a write was cut off.
            if not self._ended and (kind is None or issubclass(kind, Exception)):
                await self._finish()
        finally:
            task, self._task = self._task, None  # a reference cycle with a cancelled task otherwise
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _write(self) -> None:
        await self._more.wait()
        if self._queue and not self._headed:
            await send_headers(self._context)
        while True:
            while self._queue:
                await self._write_one(*self._take())
                if self._failure is not None:
                    self._queue.clear()
                    return
                self._has_room()  # gives back room that is not needed any more
            self._sent.set()
            if self._ended:
                return
            self._more.clear()
            await self._more.wait()

    async def _write_one(self, metadata: bytes, room: Reservation | None) -> None:
        if room is None:
            await self._context.write(_put_result(metadata))
            return
        command = self._producer.command
        assert command is not None
        reader = Reader(command.dataset, command.partition or 0, self._producer.peer)
        try:
            deliver = self._answer_room.delivery.deliver
            await deliver(self._context.write, _put_result(metadata), reader, room=room)
        except ReaderTooSlow as slow:
            # Not as the task's exception, whose traceback would keep the room.
            self._failure = ReaderTooSlow(
                f"{self._producer}: the client takes none of the echoes of its app_metadata while others wait for the "
                "room that they hold; nothing of it was kept, read them, or send less app_metadata",
                **slow.detail,
            )
            if self.reading is not None:
                with suppress(RuntimeError):  # it is not waiting now: the next ``put`` or the end raises it
                    self.reading.reschedule(asyncio.get_running_loop().time())


def _put_result(metadata: bytes) -> bytes:
    return wire.field(1, metadata) if metadata else b""
