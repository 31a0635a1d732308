"""The threads of one merge: each drains one stream into the merge's queue, or onto the disk.

Guarantee: a thread waits for its own stream, for the disk, and for the queue's lock, which no thread holds while it
waits. It waits for the consumer only with data of a later part than the consumer's (``merge_queue``, *Memory*), never
for another stream's data. When the merge ends in any way, every thread ends.

Opening
    At most ``OPEN_STREAMS`` threads start at first. Each further stream starts when one has ended, and after
    ``slot_seconds`` in any case: the open ones may be idle because their producer waits for a reader of another one.
    So the ``n``-th stream's thread starts after at most ``(n - OPEN_STREAMS) * slot_seconds``.

Finalizers
    They call ``abandon`` in any thread, also inside this file's critical sections. So it takes no lock: it sets a
    flag and cancels the streams; queued items are released with the last reference to this object.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import pyarrow as pa

from flight_server.memory import MemoryPool
from flight_server.protocol import PartitionFailed
from spark_client.connection import ForkedProcess, Timeouts
from spark_client.lanes import Batch, BatchBurst
from spark_client.spill import Parked, Scratch

from .merge_queue import WAIT, Held, MergeQueue, Meter, Nothing

DEFAULT_BUDGET_BYTES = 256 << 20
OPEN_STREAMS = 64
SLICE_SECONDS = 0.5

Item = Held[BatchBurst] | Parked
Order = Literal["arrival", "stream"]


class Stream(Protocol):
    """A stream that can be merged, such as :class:`~spark_client.lanes.ReadStream`."""

    name: str
    """For threads and messages."""

    def open(self) -> pa.Schema:
        """Block until the schema is known."""

    def read_burst(self) -> BatchBurst | None:
        """Block until the next batch; it and those received with it, None at the end of a whole stream."""

    def overdue(self, now_seconds: float) -> bool:
        """Whether ``open`` or ``read_burst`` has waited past its deadline. Called from other threads."""

    def stalled(self) -> BaseException:
        """The error for an overdue stream. May block shortly."""

    def cancel(self) -> None:
        """End ``open`` or ``read_burst`` with an error, without a lock, from any thread or finalizer."""

    def close(self) -> None:
        """Release everything; the reading thread's last call."""


class StreamThreads:
    """The threads of one merge and the lock around its queue."""

    def __init__(
        self,
        streams: Sequence[Stream],
        *,
        pool: MemoryPool | None,
        scratch_dir: str | None,
        order: Order,
        timeouts: Timeouts | None,
        parts: int | None,
    ) -> None:
        if not streams:
            raise ValueError("there is nothing to merge: a merge needs at least one stream")
        self.pool = pool if pool is not None else MemoryPool(DEFAULT_BUDGET_BYTES, "merge")
        self.scratch = Scratch(scratch_dir)
        self.timeouts = timeouts or Timeouts()
        # Re-entrant: a finalizer may run in the same thread inside a critical section.
        self.changed = threading.Condition(threading.RLock())
        # Each stream feeds the line of each part, or one line.
        self._parts = parts or 1
        self._is_by_stream = parts is None and order == "stream"
        lines, feeders = (len(streams), 1) if self._is_by_stream else (self._parts, len(streams))
        self.queue: MergeQueue[Item] = MergeQueue(lines, self.pool, feeders, holds_back=parts is not None)
        self.schema: pa.Schema | None = None
        # Batches taken from the queue and not handed out, with their burst's reservations.
        self.ready: deque[tuple[Batch, object]] = deque()
        self._streams = list(streams)
        self._pid = os.getpid()
        self._abandoned = False
        self._running = 0
        self._held_back = 0  # threads that wait for room
        self._threads: list[threading.Thread] = []
        _end_at_exit(self)
        try:
            for index in range(min(OPEN_STREAMS, len(streams))):
                self._start(index)
            if len(streams) > OPEN_STREAMS:
                self._spawn(self._launch, "merge: opens streams", OPEN_STREAMS)
        except BaseException:
            # "can't start new thread": the threads that run must end.
            self.close()
            raise

    # Threads.

    def _spawn(self, target: Callable[[int], None], name: str, argument: int) -> None:
        thread = threading.Thread(target=target, args=(argument,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _start(self, index: int) -> None:
        self._running += 1
        self._spawn(self._drain, f"merge: {self._streams[index].name}", index)

    def _launch(self, first: int) -> None:
        try:
            for index in range(first, len(self._streams)):
                deadline = time.monotonic() + self.timeouts.slot_seconds
                with self.changed:
                    while self._running >= first and not self._over():
                        left_seconds = deadline - time.monotonic()
                        if left_seconds <= 0:
                            break
                        self.changed.wait(left_seconds)
                    if self._over():
                        return
                    self._start(index)
        except BaseException as error:  # noqa: BLE001 (the consumer is told)
            self.fail(error)

    def _drain(self, index: int) -> None:
        stream = self._streams[index]
        try:
            schema = stream.open()
            self._check_schema(stream, schema)
            with self.changed:
                self.changed.notify_all()
            meter = Meter(self.pool, schema)
            line = first = index if self._is_by_stream else 0
            while (burst := stream.read_burst()) is not None:
                if line != first + burst.part:
                    self._end(line, first + burst.part)
                    line = first + burst.part
                if not self._store(line, burst, meter):
                    return
                # Else this thread would keep the burst while it waits for the next.
                del burst
            self._end(line, first + self._parts)
        except BaseException as error:  # noqa: BLE001 (the consumer raises it)
            self.fail(error)
        finally:
            stream.close()
            with self.changed:
                self._running -= 1
                # The thread that opens streams waits for this.
                self.changed.notify_all()

    def _end(self, line: int, until: int) -> None:
        """Note that the stream of this thread has no more for these lines of the queue."""
        with self.changed:
            wakes = [self.queue.end(each) for each in range(line, until)]
            if any(wakes):
                self.changed.notify_all()

    def _check_schema(self, stream: Stream, schema: pa.Schema) -> None:
        with self.changed:
            if self.schema is None:
                self.schema = schema
        if not schema.equals(self.schema):
            raise PartitionFailed(f"{stream.name} has another schema than the streams before it")

    def _store(self, line: int, burst: BatchBurst, meter: Meter) -> bool:
        """Queue the burst, in RAM or on disk. False: the merge has ended."""
        own_bytes, shared = meter.weigh(burst)
        queue = self.queue
        with self.changed:
            self._held_back += 1
            while not ((over := self._abandoned or queue.ended) or queue.has_room(line, own_bytes)):
                self.changed.wait(SLICE_SECONDS)
            self._held_back -= 1
            if over:
                return False
            reservation = queue.admit(line, own_bytes)
            if reservation is not None:
                if queue.push(line, Held(burst, reservation, shared)):
                    self.changed.notify_all()
                return True
        # Outside the lock: the disk must delay neither the consumer nor the threads whose bursts fit in RAM.
        parked = self.scratch.park(burst.batches)
        with self.changed:
            if queue.push(line, parked):
                self.changed.notify_all()
        return not self._over()

    def _over(self) -> bool:
        return self._abandoned or self.queue.ended

    # The consumer.

    def here(self) -> None:
        """Raise ``ForkedProcess`` in a forked child, where the lock may be held for ever."""
        if self._pid != os.getpid():
            raise ForkedProcess("a merged stream cannot be read in a forked child; make it after the fork")

    def wait_for_schema(self) -> pa.Schema:
        self.here()
        while True:
            with self.changed:
                if self.schema is None:
                    self.queue.check()
                    self.changed.wait(SLICE_SECONDS)
                if self.schema is not None:
                    return self.schema
            self.fail_overdue()

    def refill(self, line: int | None = None) -> bool:
        """Block until there is an item, whose batches are then ``ready``. False: the end, or that of the ``line``."""
        self.here()
        queue = self.queue
        while True:
            with self.changed:
                before = queue.line
                item = queue.take(line)
                if self._held_back and (
                    queue.line > before or 4 * self.pool.used_bytes <= (self.pool.limit_bytes or 0)
                ):
                    self.changed.notify_all()
                if item is WAIT:
                    self.changed.wait(SLICE_SECONDS)
            if item is not WAIT:
                break
            self.fail_overdue()
        if isinstance(item, Nothing):
            return False
        # Not the item itself: it would keep batches alive after they were handed out.
        accounts = item.accounts if isinstance(item, Held) else ()
        for batch in item.item.batches if isinstance(item, Held) else self.scratch.read(item):
            self.ready.append((batch, accounts))
        if queue.broken:
            # Not ``ended``: another consumer may see the end first.
            self.ready.clear()
        return True

    def skip_to(self, line: int) -> bool:
        """As :meth:`MergeQueue.skip_to`; also drop what was not handed out."""
        with self.changed:
            self.ready.clear()
            self.queue.check()
            skipped = self.queue.skip_to(line)
            self.changed.notify_all()
            return skipped

    def fail_overdue(self) -> None:
        now_seconds = time.monotonic()
        for stream in self._streams:
            if stream.overdue(now_seconds):
                self.fail(stream.stalled())
                return

    # Ending.

    def fail(self, error: BaseException) -> None:
        """End the merge with this error, unless it has ended."""
        with self.changed:
            first = self.queue.fail(error)
            if first:
                self.changed.notify_all()
        if first:
            self.ready.clear()
            self.cancel()

    def cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()

    def abandon(self) -> None:
        """End the merge without a lock and without a wait, for finalizers."""
        if self._pid == os.getpid():
            self._abandoned = True
            self.ready.clear()
            self.cancel()

    def close(self) -> None:
        """End the merge and wait for the threads, at most ``close_seconds``. Twice is fine."""
        if self._pid != os.getpid():
            return
        with self.changed:
            if self.queue.close():
                self.ready.clear()
            self.changed.notify_all()
        self._abandoned = True
        self.cancel()
        self.scratch.close()
        deadline = time.monotonic() + self.timeouts.close_seconds
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


_live: weakref.WeakSet[StreamThreads] = weakref.WeakSet()
_exit_is_watched = False


def _end_at_exit(threads: StreamThreads) -> None:
    global _exit_is_watched  # noqa: PLW0603  # once for each process
    _live.add(threads)
    if not _exit_is_watched:
        # A thread inside a C++ call at the interpreter's end would abort the process.
        _exit_is_watched = True
        atexit.register(_close_all)
        # ``refill`` checks the pid (a system call) only for each burst, so a child starts with no batches.
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for threads in list(_live):
        threads.ready.clear()


def _close_all() -> None:
    for threads in list(_live):
        threads.close()
