"""BroadcastQueue and Subscription: one writer, many readers, every reader gets every item.

Guarantee: a subscription yields the items from its start on, each exactly once and in order, while they are being
published, and then ends as the queue ended: cleanly, or with an error. It never ends cleanly before the last item.

Who holds what
    The queue counts the published items and knows which are still needed. Its :class:`Items` hold them; a
    subscription holds only its position. Retention, ``fail`` and ``clear`` release items; a closed subscription
    releases none. Publishing never waits: the writer bounds memory before it.

Retention
    With ``retain_readers=n`` an item is released as soon as ``n`` readers have passed it and all items before it.
    Taking an item does not pass it: the owner of the queue reports what a reader has received with ``passed`` (see
    ``places``).

No lost wake-up
    ``next_run`` reads the number of items and the end in one step, and the next change of either wakes a reader
    that finds neither. A spurious wake-up is harmless: the reader looks again.

Concurrency
    One event loop. Only ``wait`` awaits; cancelling it loses nothing. The shape follows tokio's ``sync::broadcast`` and
    trio's memory channels; keeping items for late readers follows datafusion-distributed's ``broadcast``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from typing import Generic, Protocol, TypeVar

from flight_server.protocol import FlightShuffleError

from .changes import Changes

T = TypeVar("T")


class WouldBlock(Exception):
    """The queue has neither the next item nor its end yet."""


class EndOfQueue(Exception):
    """Every item was taken and the writer has closed the queue."""


class Gone(Exception):
    """The item was released."""

    def __init__(self, item: int, first: int) -> None:
        super().__init__(f"item {item} was released; the oldest one left is {first}")
        self.item = item
        self.first = first


class QueueEnded(Exception):
    """``publish`` or ``advance`` after the end."""


class Items(Protocol[T]):
    """Items numbered from 0 in the order of publishing."""

    def append(self, item: T, size_bytes: int) -> None:
        """Take the next item."""

    def item(self, index: int) -> T:
        """An item that was published and not released."""

    def run(self, start: int, stop: int, size_bytes: int) -> list[T]:
        """Items from such an item on, to before ``stop`` at most: at least one, and no more than are together of
        ``size_bytes``. It may be shorter where the next item costs more to give.
        """

    def bytes_before(self, index: int) -> int:
        """The bytes of all items before such an item."""

    def release(self, stop: int) -> None:
        """Release the items before ``stop``: the queue asks for none of them again."""


@dataclass(slots=True)
class Passes:
    """How many readers have passed each item from ``first`` on, which grows once so many ``readers`` have passed it.

    A reader passes ranges of neighbouring items. Only their borders are kept, each with how many more (or fewer)
    readers have passed the item there than the one before it: two numbers for each place at which a reader is or has
    left.
    """

    readers: int
    first: int
    _passes: int = 0  # of the first item
    _borders: dict[int, int] = field(default_factory=dict)

    def add(self, start: int, stop: int, by: int = 1) -> None:
        """``by`` more readers have passed these items; with -1, one that had is no longer counted."""
        start = max(start, self.first)
        if start >= stop:
            return
        if start == self.first:
            self._passes += by
        else:
            self._change(start, by)
        self._change(stop, -by)
        while self._passes >= self.readers:
            self.first += 1
            self._passes += self._borders.pop(self.first, 0)

    def _change(self, index: int, by: int) -> None:
        by += self._borders.pop(index, 0)
        if by:
            self._borders[index] = by


@dataclass(slots=True, eq=False)
class BroadcastQueue(Generic[T]):
    """The writer's side: counts the items and ends the queue. ``items``: empty and for this queue alone.
    ``retain_readers``: see "Retention"; None keeps all.
    """

    _items: Items[T]
    retain_readers: InitVar[int | None] = None
    _length: int = field(default=0, init=False)
    first: int = field(default=0, init=False)  # the index of the oldest item that is still there
    _gone_bytes: int = field(default=0, init=False)  # of the items before that
    total_bytes: int = field(default=0, init=False)  # of all published items, also released ones
    _passes: Passes | None = field(init=False)
    ended: bool = field(default=False, init=False)
    failure: FlightShuffleError | None = field(default=None, init=False)
    _subscriptions: dict[Subscription[T], None] = field(default_factory=dict, init=False)
    _changes: Changes = field(default_factory=Changes, init=False)

    def __post_init__(self, retain_readers: int | None) -> None:
        self._passes = None if retain_readers is None else Passes(retain_readers, 0)

    def __len__(self) -> int:
        """The number of published items, also released ones."""
        return self._length

    @property
    def bytes_left(self) -> int:
        """The bytes of the published items that are not released."""
        return self.total_bytes - self._gone_bytes

    def restore(self, first: int, first_bytes: int, count: int, size_bytes: int) -> None:
        """So many items were published, and those before ``first`` released. The owner adds the others to the
        :class:`Items` before the first of them is asked for.
        """
        assert self._length == 0
        self.first, self._gone_bytes = first, first_bytes
        self._length, self.total_bytes = count, size_bytes
        self._start_counting_passes()

    def publish(self, item: T, size_bytes: int) -> None:
        """Append an item. Raises QueueEnded; then the item was not taken."""
        if self.ended:
            raise QueueEnded("publish after the end")
        self._items.append(item, size_bytes)
        self.advance(1, size_bytes)

    def advance(self, count: int, size_bytes: int) -> None:
        """As :meth:`publish`, for items that the :class:`Items` have taken by themselves."""
        if self.ended and count:
            raise QueueEnded("an item after the end")
        self.total_bytes += size_bytes
        self._length += count
        self._changes.tell()

    def begin_again(self, items: Items[T]) -> None:
        """Have other items, which are empty: of the ones before none was published."""
        assert self._length == 0
        self._items = items

    def close(self) -> None:
        """Readers end cleanly after the last item. Twice is fine; after ``fail`` it does nothing."""
        if not self.ended:
            self.ended = True
            self._changes.tell()

    def fail(self, cause: FlightShuffleError) -> None:
        """Release all items; every reader, present and later, gets an error of its own, raised ``from`` the cause.
        The first cause stays.
        """
        if self.failure is None:
            self.ended = True
            self.failure = cause
            self.clear()
            self._changes.tell()

    def clear(self) -> None:
        """Release all items; a subscription that still needs one gets :class:`Gone`."""
        self.first = self._length
        self._gone_bytes = self.total_bytes
        self._items.release(self._length)
        self._start_counting_passes()

    def check(self) -> None:
        """Raise a fresh copy of the cause of :meth:`fail`, if there is one."""
        if self.failure is not None:
            raise self.failure.fresh() from self.failure

    def subscribe(self, start: int = 0, stop: int | None = None) -> Subscription[T]:
        """A reader's place, also after the end; its owner closes it. It ends before item ``stop``, if given.

        Raises :class:`Gone`.
        """
        if self.failure is None and start < self.first:
            raise Gone(start, self.first)
        subscription = Subscription(self, start, stop)
        self._subscriptions[subscription] = None
        return subscription

    def subscriptions(self) -> list[Subscription[T]]:
        return list(self._subscriptions)

    def items(self, start: int, stop: int) -> Iterator[T]:
        """Those from ``start`` to before ``stop`` that are published and not released."""
        for index in range(max(start, self.first), min(stop, self._length)):
            yield self._items.item(index)

    # The queue's side of Subscription.

    def _bytes_before(self, index: int) -> int:
        if index >= self._length:
            return self.total_bytes
        return self._items.bytes_before(index) if index > self.first else self._gone_bytes

    def _start_counting_passes(self) -> None:
        if self._passes is not None:
            self._passes = Passes(self._passes.readers, self.first)

    def passed(self, start: int, stop: int, by: int = 1) -> None:
        """See :meth:`Passes.add`. May release items."""
        if self._passes is None:
            return
        self._passes.add(start, min(stop, self._length), by)
        first = self._passes.first
        if first > self.first:
            self._gone_bytes = self._bytes_before(first)
            self.first = first
            self._items.release(first)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Subscription(Generic[T]):
    """One reader's place in a queue. It takes items with ``next_run`` and ``take``, and ``wait``s for more."""

    _queue: BroadcastQueue[T]
    start: int
    stop: int | None = None
    position: int = field(init=False)
    _cause: FlightShuffleError | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _waits: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.position = self.start

    @property
    def lag_bytes(self) -> int:
        """The bytes that this reader has yet to take, without released items."""
        queue = self._queue
        end_bytes = queue.total_bytes if self.stop is None else queue._bytes_before(self.stop)
        return max(0, end_bytes - queue._bytes_before(self.position))

    def next_run(self, count: int, size_bytes: int) -> list[T]:
        """The next published items, without taking them: at least one, at most ``count``, and no more than
        ``size_bytes`` together unless the first is larger; see :meth:`Items.run`.

        Raises:
            WouldBlock, EndOfQueue (again at every further call), Gone, ValueError after :meth:`close`, or a fresh copy
            of the cause of :meth:`end` or of the queue's ``fail``.
        """
        if self._cause is not None:
            raise self._cause.fresh()
        if self._closed:
            raise ValueError("the subscription is closed")
        queue = self._queue
        queue.check()
        if self.position == self.stop:
            raise EndOfQueue
        if self.position < queue.first:
            raise Gone(self.position, queue.first)
        if self.position < queue._length:
            stop = self.position + count
            if self.stop is not None and self.stop < stop:
                stop = self.stop
            return queue._items.run(self.position, min(stop, queue._length), size_bytes)
        if queue.ended:
            raise EndOfQueue
        raise WouldBlock

    def take(self, count: int) -> None:
        """Take so many of the items that :meth:`next_run` has just returned."""
        self.position += count

    def upcoming(self) -> Iterator[T]:
        """The published items from the position on, without taking them."""
        length, stop = self._queue._length, self.stop
        return self._queue.items(self.position, length if stop is None else min(stop, length))

    async def wait(self) -> None:
        """Return at once if ``next_run`` would not block, else at the queue's next change. Cancelling is safe."""
        queue = self._queue
        if not (self.position < queue._length or queue.ended or self._closed or self.position == self.stop):
            self._waits = True
            try:
                await queue._changes.next()
            finally:
                self._waits = False

    def end(self, cause: FlightShuffleError) -> None:
        """Close it; its reader's next call raises a fresh copy of the cause."""
        self._cause = cause
        self.close()

    def close(self) -> None:
        """Leave the queue; a waiting task is woken and gets ValueError. Twice is fine."""
        if not self._closed:
            self._closed = True
            self._queue._subscriptions.pop(self, None)
            if self._waits:  # a reader that leaves by itself wakes none of the others
                self._queue._changes.tell()
