"""A queue whose items are kept in a dict, and a reader that takes them one by one."""

from __future__ import annotations

from typing import Generic, TypeVar

from flight_server.concurrency.broadcast_queue import BroadcastQueue, Subscription, WouldBlock

T = TypeVar("T")


class KeptItems(Generic[T]):
    """Keeps the items as they are, each with the bytes before it."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[T, int]] = {}
        self.first = 0
        self._length = 0
        self._total_bytes = 0

    def append(self, item: T, size_bytes: int) -> None:
        self.kept[self._length] = (item, self._total_bytes)
        self._length += 1
        self._total_bytes += size_bytes

    def item(self, index: int) -> T:
        return self.kept[index][0]

    def run(self, start: int, stop: int, size_bytes: int) -> list[T]:
        item, before_bytes = self.kept[start]
        run = [item]
        for index in range(start + 1, stop):
            end_bytes = self.kept[index + 1][1] if index + 1 < self._length else self._total_bytes
            if end_bytes - before_bytes > size_bytes:
                break
            run.append(self.kept[index][0])
        return run

    def bytes_before(self, index: int) -> int:
        return self.kept[index][1]

    def release(self, stop: int) -> None:
        for index in range(self.first, stop):
            del self.kept[index]
        self.first = stop


def kept_queue(retain_readers: int | None = None) -> BroadcastQueue[int]:
    """A queue with items of its own."""
    return BroadcastQueue(KeptItems(), retain_readers)


def take_one(reader: Subscription[T]) -> T:
    """The next item, taken. Raises as :meth:`Subscription.next_run`."""
    item = reader.next_run(1, 0)[0]
    reader.take(1)
    return item


async def next_one(reader: Subscription[T]) -> T:
    """The same, once it is there."""
    while True:
        try:
            return take_one(reader)
        except WouldBlock:
            await reader.wait()
