"""The state machine of a merge: the items of many streams, in the order in which the consumer takes them.

Guarantee: every pushed item is taken exactly once, those of a line in the order in which they were pushed, one line
after the other, by any consumer, or the taker gets the first error. No stream that the consumer waits for waits for the
consumer.

This file starts no thread, waits for nothing and does no I/O: a method changes all state and returns the action to
take (*keep*, *park*, *wake the consumer*, *wait*). Its owner calls it, and wakes all waiting consumers, under one
lock. So no wake-up is lost.

Lines
    A line is fed by one stream or more, its ``feeders``, and ends when all have ended it. One line for all streams
    gives their items in the order of arrival; a line for each stream, stream by stream; a line for each part that all
    streams have, part by part.

Memory
    An item is a ``BatchBurst``, admitted, parked and taken as a whole, because its batches often share one allocation.
    :meth:`MergeQueue.admit` decides where it goes, before it is pushed:

    1. it fits the pool: RAM;
    2. the consumer waits for this item, and the pool is not over its limit already: RAM;
    3. it is larger than the whole limit and the pool is empty: RAM;
    4. otherwise: disk.

    With ``holds_back`` an item of a later line than the consumer's waits where half of the pool is used
    (:meth:`MergeQueue.has_room`), until its line is the consumer's. Those that the consumer waits for never do.

    So the pool holds at most ``limit + largest item`` for each merge that uses it, and the streams' shared
    dictionaries (:class:`Meter`). Not counted is the item that each open stream's thread holds before it is pushed:
    at worst ``open streams * largest item``, while all threads wait for the disk.

Ending
    A queue ends once: *finished* (all streams ended and every item was taken), *failed* (the first error) or *closed*
    by its consumer. After the last two, queued items are released at once and later pushes are dropped.
    :meth:`MergeQueue.take` reads the items and the end as one state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

import pyarrow as pa

from flight_server.memory import MemoryPool, Reservation
from flight_server.protocol import FlightShuffleError
from spark_client.lanes import BatchBurst, Closed

T = TypeVar("T")


class Nothing(Enum):
    """The answer of :meth:`MergeQueue.take` when it has no item."""

    WAIT = "nothing yet; the next change that matters will wake"
    END = "every stream has ended and everything was taken"


WAIT: Final = Nothing.WAIT
END: Final = Nothing.END


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """An item in RAM, and its reservations, which end with ``accounts``."""

    item: T
    reservation: Reservation
    shared: tuple[Reservation, ...] = ()

    @property
    def accounts(self) -> tuple[Reservation, ...]:
        return (self.reservation, *self.shared)


class MergeQueue(Generic[T]):
    """``T`` is the type of pushed items: a :class:`Held`, or a name of a parked item.

    ``line`` is the one whose items are taken now. ``ended``: there is nothing more to take or to push; ``broken``: by
    an error, or its consumer.

    Args:
        lines: their number, and of each its ``feeders``.
        pool: counts the RAM; other merges may share it.
        holds_back: see *Memory*.
    """

    def __init__(self, lines: int, pool: MemoryPool, feeders: int = 1, *, holds_back: bool = False) -> None:
        self.line = 0
        self.ended = False
        self.broken = False
        self._pool = pool
        self._holds_back = holds_back
        self._lines: list[deque[T]] = [deque() for _ in range(lines)]
        self._feeders = [feeders] * lines
        self._consumer_waits = False
        self._error: BaseException | None = None

    # The streams' side.

    def has_room(self, line: int, size_bytes: int) -> bool:
        """Whether the line's next item may be admitted now; if not, ask again after :meth:`take`."""
        limit_bytes = self._pool.limit_bytes
        if not self._holds_back or line <= self.line or limit_bytes is None:
            return True
        return self._pool.used_bytes + size_bytes <= limit_bytes // 2

    def admit(self, line: int, size_bytes: int) -> Reservation | None:
        """The reservation for the line's next item, to be pushed as :class:`Held`; None: park the item."""
        if self.broken:
            return self._pool.empty()
        reservation = self._pool.try_reserve(size_bytes)
        if reservation is not None:
            return reservation
        limit_bytes = self._pool.limit_bytes
        if limit_bytes is None:
            # A request that waits in an unlimited pool's parent need not hold this item back.
            return self._pool.reserve(size_bytes)
        if self._consumer_waits and line == self.line and self._pool.used_bytes <= limit_bytes:
            return self._pool.reserve(size_bytes)
        return _reserve_alone(self._pool, size_bytes) if size_bytes > limit_bytes else None

    def push(self, line: int, item: T) -> bool:
        """Append the line's next item, or drop it after the queue's end. True: wake the consumer."""
        if self.broken:
            return False
        self._lines[line].append(item)
        wakes = self._consumer_waits and line == self.line
        self._consumer_waits = self._consumer_waits and not wakes
        return wakes

    def end(self, line: int) -> bool:
        """One of its feeders has no more for the line. True: wake the consumer."""
        self._feeders[line] -= 1
        wakes = not self._feeders[line] and self._consumer_waits and line == self.line
        self._consumer_waits = self._consumer_waits and not wakes
        return wakes

    def fail(self, error: BaseException) -> bool:
        """End with an error. True: it is the first, so cancel the streams and wake the consumer."""
        if self.ended:
            return False
        self._error = error
        self.ended = self.broken = True
        self._consumer_waits = False
        for line in self._lines:
            line.clear()  # which also releases the items' reservations and their places on disk
        return True

    def close(self) -> bool:
        """End because the consumer wants no more. True: cancel the streams and wake the consumer."""
        return self.fail(Closed("the stream was closed before its end; what was not taken is gone"))

    # The consumer's side.

    def take(self, line: int | None = None) -> T | Nothing:
        """The next item, ``END``, or ``WAIT``: then the call that brings an item, an end or an error wakes. With a
        ``line`` its end is the end. Raises BaseException: the first error, at each call; errors of our tree as a fresh
        instance.
        """
        if self.broken:
            self.check()
        self._consumer_waits = False
        while True:
            if self.ended or (line is not None and line < self.line):
                return END
            if self._lines[self.line]:
                return self._lines[self.line].popleft()
            if self._feeders[self.line]:
                self._consumer_waits = True
                return WAIT
            if self.line == len(self._lines) - 1:
                self.ended = True
            else:
                self.line += 1

    def skip_to(self, line: int) -> bool:
        """Drop the items of the lines before. False: some are still to come, and nothing was dropped."""
        passed = range(self.line, line)
        if any(self._feeders[each] for each in passed):
            return False
        for each in passed:
            self._lines[each].clear()
        self.line = max(line, self.line)
        return True

    def check(self) -> None:
        """Raise the error that the queue ended with, if any."""
        if self._error is not None:
            raise fresh(self._error)


def fresh(error: BaseException) -> BaseException:
    """A new instance of one of our errors, because each raise adds a traceback; any other error itself."""
    if isinstance(error, FlightShuffleError):
        twin = error.fresh()
        twin.__cause__ = error
        return twin
    return error


def _reserve_alone(pool: MemoryPool, size_bytes: int) -> Reservation | None:
    """A reservation larger than the pool's limit, if the pool is empty and no request waits."""
    granted: list[Reservation] = []
    # The pool's own queue decides, because only there is "empty" and "granted" one step.
    pool.request(size_bytes, granted.append).cancel()
    return granted[0] if granted else None


class Meter:
    """Counts one stream's batches in decoded bytes, each shared dictionary once.

    A dictionary has its own reservation, which lives as long as any batch that refers to it. It is counted even when
    it does not fit: the stream's decoder holds it already.
    """

    def __init__(self, pool: MemoryPool, schema: pa.Schema) -> None:
        self._pool = pool
        self._columns = [i for i, field in enumerate(schema) if pa.types.is_dictionary(field.type)]
        self._key: tuple[int, ...] = ()
        self._shared: Reservation | None = None

    def weigh(self, burst: BatchBurst) -> tuple[int, tuple[Reservation, ...]]:
        """The burst's bytes without dictionaries, at least its shared allocation; the dictionaries' reservations."""
        if not self._columns:
            own_bytes = 0
            for batch in burst.batches:  # which takes no call of its own for each burst
                own_bytes += batch.get_total_buffer_size()
            return max(own_bytes, burst.shared_bytes), ()
        measured = [self.measure(batch) for batch in burst.batches]
        shared = {id(each): each for _, each in measured if each is not None}
        return max(sum(own_bytes for own_bytes, _ in measured), burst.shared_bytes), tuple(shared.values())

    def measure(self, batch: pa.RecordBatch) -> tuple[int, Reservation | None]:
        """The batch's bytes without its shared dictionaries, and their reservation, if any.

        Dictionaries inside nested columns are counted with each batch: too much, never too little.
        """
        own_bytes = int(batch.get_total_buffer_size())
        if not self._columns:
            return own_bytes, None
        dictionaries = [batch.column(i).dictionary for i in self._columns]
        key = tuple(buffer.address for d in dictionaries for buffer in d.buffers() if buffer is not None)
        shared_bytes = sum(int(d.get_total_buffer_size()) for d in dictionaries)
        if key != self._key or self._shared is None:
            self._key = key
            self._shared = self._pool.reserve(shared_bytes)
        return max(0, own_bytes - shared_bytes), self._shared
