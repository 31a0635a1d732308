"""merge: many streams become one, without a way to hang and within a memory budget.

Guarantee: the consumer gets every batch of every stream exactly once, or the first error. Every stream
is drained by a thread of its own as fast as it comes, whatever the consumer does and whatever the other
streams do; no queue is bounded, so no stream ever waits for another one's consumer. The deadlock of
bounded queues over a shared HTTP/2 connection window therefore cannot happen. Memory is bounded all the
same: what does not fit the budget is parked in a local file (:mod:`spark_client.merge.scratch`).

Who holds the data
    A batch is in the hand of its stream's thread, then in the queue (counted in decoded bytes in the
    pool) or in the scratch file, then with the consumer. Its reservation ends when the consumer takes
    it. What a stream received in one piece is one *run*, with one reservation until the last of its
    batches is taken (:class:`~spark_client.merge.Run`). Worst case: ``budget + largest run`` counted in
    the pool, and not counted one run in each open stream's hand, what its transport buffers
    (:mod:`spark_client.connection.transport`), and what the consumer has in its hand: a run that was read back
    from disk, and the batch it works on.
    The batches of a run may share one allocation of up to 4 MiB: a consumer that keeps one keeps all.

Ending
    The end, an error, ``close``, leaving a ``with`` block, an exception out of ``next`` (Ctrl-C too)
    and garbage collection all end it: streams are cancelled, threads end, connections go back or are
    closed, the scratch file goes, reservations return to zero. All but garbage collection wait
    ``close_seconds`` for the threads. A thread that is connecting ends with its deadline; it is a
    daemon and holds nothing but that connection. At the interpreter's exit everything is closed.

Deadlines
    Waits are cut into slices of half a second; between them the streams' deadlines are looked at. A
    stream that is overdue fails the merge, with an error that says what the server waits for. Nothing
    is overdue while its own batches wait for the consumer.

Sync and async
    :class:`MergedStream` is an iterator and works in any thread, also in one where an event loop runs
    (which it blocks). :class:`AsyncMergedStream` never blocks its loop; disk and the question why run
    in a thread. Both are thin: what happens is decided in :mod:`spark_client.merge.merge_queue`.

Fork
    Threads do not survive a fork: in a child, ``next`` of the parent's stream is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Self

import pyarrow as pa

from flight_server.memory import MemoryPool
from spark_client.connection import Timeouts
from spark_client.lanes import Batch

from .merge_queue import WAIT, Held, Nothing, Order
from .stream_threads import SLICE_SECONDS, Item, MergeStatistics, Stream, StreamThreads

OPEN_STREAMS = 64


class _Merged:
    """What both shells share."""

    def __init__(self, run: StreamThreads) -> None:
        self._run = run
        finalizer = weakref.finalize(self, run.abandon)
        finalizer.atexit = False

    def close(self) -> None:
        """End it: see the module. Twice, and after the end, is fine."""
        self._run.close()

    def statistics(self) -> MergeStatistics:
        """What it holds, spilled and has handed out."""
        return self._run.statistics()


class MergedStream(_Merged):
    """An iterator of record batches; also a context manager. See the module."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch; blocks until the first stream has said it, with its deadline."""
        try:
            return self._run.wait_for_schema()
        except BaseException:
            self._run.close()
            raise

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            while True:
                try:
                    return self._run.ready.popleft()[0]
                except IndexError:
                    # Not asked before: a second consumer may come between.
                    self._refill()
        except StopIteration:
            raise
        except BaseException:
            # Also Ctrl-C: an item may be lost between the queue and here, so nothing more may follow.
            self.close()
            raise

    def _refill(self) -> None:
        item = self._run.take()
        if isinstance(item, Nothing):
            self._run.close()
            raise StopIteration
        self._run.hand_out(self._run.load(item), item)

    def to_reader(self) -> pa.RecordBatchReader:
        """The same batches for whoever takes Arrow's own reader; it owns this stream from now on."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Generator[Batch, None, None]:
        try:
            yield from self
        finally:
            # Not close: the generator may be collected in any thread, and must not wait there.
            self._run.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncMergedStream(_Merged):
    """The same for ``async for``. One task iterates; cancelling ``__anext__`` loses nothing."""

    def __init__(self, run: StreamThreads) -> None:
        super().__init__(run)
        self._loading: asyncio.Future[list[Batch]] | None = None

    async def schema(self) -> pa.Schema:
        """The schema of every batch. Safe to cancel."""
        while self._run.schema is None:
            await self._wait(self._has_schema)
        return self._run.schema

    def _has_schema(self) -> bool:
        self._run.queue.check()
        return self._run.schema is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        try:
            ready = self._run.ready
            while not ready:
                await self._refill()
            return ready.popleft()[0]
        except (StopAsyncIteration, asyncio.CancelledError):
            raise
        except BaseException:
            await self.aclose()
            raise

    async def _refill(self) -> None:
        if self._loading is None:
            item = await self._take()
            if isinstance(item, Nothing):
                await self.aclose()
                raise StopAsyncIteration
            if isinstance(item, Held):
                self._run.hand_out(item.item.batches, item)
                return
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._run.load, item)
        # Shielded: a cancelled reader that comes back gets what was under way.
        batches = await asyncio.shield(self._loading)
        self._loading = None
        self._run.hand_out(batches)

    async def _take(self) -> Item | Nothing:
        taken: list[Item | Nothing] = []

        def take() -> bool:
            item = self._run.queue.take()
            if item is WAIT:
                return False
            taken.append(item)
            return True

        while not await self._wait(take):
            pass
        return taken[0]

    async def _wait(self, ready: Callable[[], Any]) -> bool:
        """Under the lock ask ``ready``; if it is not, wait for one wake-up or one slice."""
        run = self._run
        run.here()
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def waker() -> None:
            # A loop that was closed has nobody left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

        with run.changed:
            if ready():
                return True
            run.wakers.append(waker)
        try:
            async with asyncio.timeout(SLICE_SECONDS):
                await woken.wait()
        except TimeoutError:
            stream = run.overdue()
            if stream is not None:
                run.fail(await asyncio.to_thread(stream.stalled))
        finally:
            with run.changed:
                run.wakers.remove(waker)
        return False

    async def aclose(self) -> None:
        """End it without blocking the loop. Twice is fine; cancelling it leaves only the waiting undone."""
        self._run.abandon()
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.cancel()
        await asyncio.to_thread(self._run.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def merge(
    streams: Sequence[Stream],
    *,
    pool: MemoryPool | None = None,
    scratch_dir: str | None = None,
    order: Order = "arrival",
    timeouts: Timeouts | None = None,
    open_streams: int = OPEN_STREAMS,
) -> MergedStream:
    """Start draining all streams; see the module.

    Args:
        streams: at least one, all of one schema, none of them opened by others.
        pool: the budget in decoded bytes; None for one of 256 MiB of its own.
        scratch_dir: where batches go that do not fit; None for the system's temporary directory.
        order: ``arrival`` as they come, ``stream`` all of the first, then all of the second, …
        timeouts: ``slot_seconds`` and ``close_seconds`` are used here; the streams have their own.
        open_streams: how many may be open at once without waiting, see *Opening*.

    Raises:
        ValueError: no streams.
    """
    return MergedStream(
        StreamThreads(
            streams,
            pool=pool,
            scratch_dir=scratch_dir,
            order=order,
            timeouts=timeouts,
            open_streams=open_streams,
        )
    )


def merge_async(
    streams: Sequence[Stream],
    *,
    pool: MemoryPool | None = None,
    scratch_dir: str | None = None,
    order: Order = "arrival",
    timeouts: Timeouts | None = None,
    open_streams: int = OPEN_STREAMS,
) -> AsyncMergedStream:
    """As :func:`merge`, for ``async for``. Needs no running loop yet."""
    return AsyncMergedStream(
        StreamThreads(
            streams,
            pool=pool,
            scratch_dir=scratch_dir,
            order=order,
            timeouts=timeouts,
            open_streams=open_streams,
        )
    )
