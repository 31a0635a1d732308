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

import grpc

from flight_server.protocol import wire
from flight_server.transfer import Producer, PutReceiver

from .first_messages import FirstMessages

MAX_UNREAD_ANSWER_BYTES = 1 << 20
LAST_ANSWERS_SECONDS = 5.0
_ANSWER_COST_BYTES = 100  # of keeping one, however short it is

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types


async def take_put(puts: PutReceiver, first: FirstMessages, context: Context) -> None:
    """Take the put of one call to its end.

    Raises:
        FlightShuffleError: see :meth:`PutReceiver.receive` and :meth:`FirstMessages.unheard`.
    """
    producer = puts.producer(context.peer())
    async with GrpcAnswers(context) as answers, aclosing(_messages(context, producer, first)) as messages:
        await puts.receive(messages, producer, answers)


async def _messages(
    context: Context, producer: Producer, first: FirstMessages
) -> AsyncGenerator[bytes, None]:
    """The client's messages, until the client ends them or the call breaks off.

    gRPC's own iterator would hold each message until the next has come.
    """
    await producer.room()
    async with first.unheard():
        message = await _next_message(context, producer)
    while message is not None:
        yield message
        del message
        await producer.room()
        message = await _next_message(context, producer)


async def _next_message(context: Context, producer: Producer) -> bytes | None:
    try:
        with producer.awaited():
            async with asyncio.timeout(producer.idle_seconds):
                message = await context.read()
    except TimeoutError:
        raise producer.stalled(inside=False) from None
    return None if message is grpc.aio.EOF else message


class GrpcAnswers:
    """Sends PutResults. Of those that the client has not read, the last ``MAX_UNREAD_ANSWER_BYTES`` are kept, and
    always the last one.
    """

    def __init__(self, context: Context) -> None:
        self.checksum = None  # this lane has none for each message; a commit may have one for all
        self._context = context
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._used = False
        self._more = asyncio.Event()
        self._sent = asyncio.Event()  # all that was queued has been written
        self._headed = False
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def put(self, metadata: bytes) -> None:
        self._used = True
        self._sent.clear()
        self._queue.append(metadata)
        self._queued_bytes += len(metadata) + _ANSWER_COST_BYTES
        while self._queued_bytes > MAX_UNREAD_ANSWER_BYTES and len(self._queue) > 1:
            self._take()  # the client reads no answers
        self._more.set()

    async def confirm_end(self) -> None:
        """After the end of the requests: return if the client has ended them; on a broken call this is cancelled.

        When a call breaks off, grpc.aio reports the end of the requests before it cancels. An operation begun in
        between fails, so one that succeeds proves that the client has ended them: sending the headers, or an empty
        PutResult after other answers. If the client does not read, that PutResult is pending; not to have failed after
        ``LAST_ANSWERS_SECONDS`` is proof enough.
        """
        if not self._used:
            self._headed = True
            await self._context.send_initial_metadata(())
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
        if self._task.done():
            self._task.result()

    async def _finish(self) -> None:
        """Send what is queued and no more; give up after ``LAST_ANSWERS_SECONDS``."""
        assert self._task is not None
        self._ended = True
        self._more.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_ANSWERS_SECONDS):
                await asyncio.shield(self._task)

    def _take(self) -> bytes:
        metadata = self._queue.popleft()
        self._queued_bytes -= len(metadata) + _ANSWER_COST_BYTES
        return metadata

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
            # Not with the first message: if that is cut off, gRPC would send the headers once more.
            await self._context.send_initial_metadata(())
        while True:
            while self._queue:
                await self._context.write(_put_result(self._take()))
            self._sent.set()
            if self._ended:
                return
            self._more.clear()
            await self._more.wait()


def _put_result(metadata: bytes) -> bytes:
    return wire.field(1, metadata) if metadata else b""
