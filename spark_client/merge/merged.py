"""merge: many streams become one, without a deadlock and within a memory budget.

Guarantee: the consumer gets every batch of every stream exactly once, or the first error. A thread for each stream
drains it as fast as its batches arrive. No queue is bounded, so no stream waits for another's consumer, and the
deadlock of bounded queues over a shared HTTP/2 connection window cannot happen. Batches that do not fit the memory
budget are parked in a local file (``scratch``).

Parts
    Streams of several parts, one for each server, may be long. So one that is ahead of the part that the consumer takes
    stops while half of the budget is used. The streams that the consumer waits for never stop, and come from other
    servers, over other connections. A server that cuts a stopped stream off is asked for the rest.

Who holds the data
    A stream's thread holds a burst (``lanes.BatchBurst``) until it is in the scratch file or in the queue, where the
    pool counts its decoded bytes until the consumer has taken its last batch. ``merge_queue`` has the worst case. Also
    not counted: the transport's buffers (``connection.transport``), one burst that the consumer has read back from
    disk, and the batch that it works on. A burst's batches may share one allocation of up to 4 MiB: a consumer that
    keeps one keeps all.

Ending
    The end, an error, ``close``, leaving a ``with`` block, an exception out of ``next`` (also Ctrl-C), garbage
    collection and the interpreter's exit end the merge: streams are cancelled, threads end, connections are given
    back or closed, the scratch file is closed, reservations return to zero. All but garbage collection (also that of
    a reader from ``to_reader``) wait up to ``close_seconds`` for the threads. A thread that is connecting ends at its
    deadline; it is a daemon and holds only that connection. In a forked child ``next`` raises ``ForkedProcess``.

Deadlines
    Only a waiting consumer checks them, every half second. An overdue stream fails the merge, with an error that names
    the reason why the server waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Self, TypeVar

import pyarrow as pa

from flight_server.memory import MemoryPool
from spark_client.connection import Closable, Timeouts
from spark_client.lanes import Batch

from .stream_threads import Order, Stream, StreamThreads

T = TypeVar("T")


class _Merged:
    """Starts draining all streams.

    Args:
        streams: at least one, all of one schema, none of them opened by others.
        pool: the budget in decoded bytes; None for a new pool of 256 MiB.
        scratch_dir: None for the system's temporary directory.
        order: ``arrival``, or ``stream``: all of the first stream, then all of the second, …
        timeouts: ``slot_seconds`` and ``close_seconds`` are used here; the streams have their own.
        parts: so many parts does each stream have, as their bursts say, in order: all streams' part 0 comes first, then
            all streams' part 1, …; ``order`` is not used. None if each stream is a whole.

    Raises:
        ValueError: no streams.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        *,
        pool: MemoryPool | None = None,
        scratch_dir: str | None = None,
        order: Order = "arrival",
        timeouts: Timeouts | None = None,
        parts: int | None = None,
    ) -> None:
        self._threads = StreamThreads(
            streams, pool=pool, scratch_dir=scratch_dir, order=order, timeouts=timeouts, parts=parts
        )
        finalizer = weakref.finalize(self, self._threads.abandon)
        finalizer.atexit = False

    def close(self) -> None:
        """End the merge. Twice, and after the end, is fine."""
        self._threads.close()

    @property
    def spilled_bytes(self) -> int:
        return self._threads.scratch.written_bytes


class MergedStream(_Merged, Closable):
    """An iterator of record batches, for any thread (it blocks an event loop); also a context manager."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch. Blocks until the first stream has it, with that stream's deadline."""
        try:
            return self._threads.wait_for_schema()
        except BaseException:
            self._threads.close()
            raise

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            while True:
                try:
                    return self._threads.ready.popleft()[0]
                except IndexError:
                    # Not ``if ready`` before: a second consumer may take the last batch in between.
                    if not self._threads.refill():
                        self._threads.close()
                        raise StopIteration from None
        except StopIteration:
            raise
        except BaseException:
            # Also Ctrl-C: an item may be lost between the queue and here, so no later batch may be returned.
            self.close()
            raise

    def part(self, number: int) -> Generator[Batch, None, None]:
        """The batches of one of the ``parts``; parts are taken from the first one on. It may be left before its end."""
        threads = self._threads
        try:
            while threads.refill(number):
                while threads.ready:
                    yield threads.ready.popleft()[0]
        except GeneratorExit:
            raise
        except BaseException:
            self.close()
            raise

    def skip_to(self, part: int) -> bool:
        """Drop what is left of the parts before. False: some of it is still to come, and only what was received with
        the last batch was dropped.
        """
        return self._threads.skip_to(part)

    def to_reader(self) -> pa.RecordBatchReader:
        """The same batches as an Arrow reader, which owns this stream from now on."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Generator[Batch, None, None]:
        try:
            yield from self
        finally:
            # Not ``close``: the generator may be collected in any thread, and must not wait there.
            self._threads.abandon()


class AsyncMergedStream(_Merged):
    """As :class:`MergedStream`, for ``async for`` in one task. Cancelling ``__anext__`` loses no batch.

    A thread of its own waits, reads from the disk and asks the server.
    """

    _refilling: asyncio.Future[bool] | None = None

    async def schema(self) -> pa.Schema:
        """As :attr:`MergedStream.schema`. Safe to cancel."""
        waiting = in_thread(self._threads.wait_for_schema, "merge: waits for its schema")
        return await asyncio.shield(asyncio.wrap_future(waiting))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        ready = self._threads.ready
        try:
            while not ready:
                if self._refilling is None:
                    waiting = in_thread(self._threads.refill, "merge: waits for a batch")
                    self._refilling = asyncio.wrap_future(waiting)
                # Shielded: after a cancel, the next call gets the batches of the thread that runs.
                has_more = await asyncio.shield(self._refilling)
                self._refilling = None
                if not has_more:
                    raise StopAsyncIteration
            return ready.popleft()[0]
        except asyncio.CancelledError:
            raise
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """End the merge without blocking the loop. Twice is fine. Cancelling it ends only the wait for the threads."""
        self._threads.abandon()
        refilling, self._refilling = self._refilling, None
        await asyncio.to_thread(self._threads.close)
        if refilling is not None:
            with contextlib.suppress(Exception):
                await refilling

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def in_thread(call: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """The result of ``call``, which a thread of its own makes: it may wait for ever, and the threads of an event loop's
    executor, of which there are few, do not.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 (the consumer raises it)
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


merge = MergedStream
merge_async = AsyncMergedStream
"""Needs no running loop."""
