"""Items: the storage behind a BroadcastQueue, which itself only counts."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


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

    def skip(self, count: int, size_bytes: int) -> None:
        """Begin at ``count``, as if those before, of ``size_bytes``, had been taken and released."""


class KeptItems(Generic[T]):
    """Keeps the items as they are, each with the bytes before it."""

    __slots__ = ("_first", "_kept", "_length", "_total_bytes")

    def __init__(self) -> None:
        self._kept: dict[int, tuple[T, int]] = {}
        self._first = 0
        self._length = 0
        self._total_bytes = 0

    def append(self, item: T, size_bytes: int) -> None:
        self._kept[self._length] = (item, self._total_bytes)
        self._length += 1
        self._total_bytes += size_bytes

    def item(self, index: int) -> T:
        return self._kept[index][0]

    def run(self, start: int, stop: int, size_bytes: int) -> list[T]:
        item, before_bytes = self._kept[start]
        run = [item]
        for index in range(start + 1, stop):
            end_bytes = self._kept[index + 1][1] if index + 1 < self._length else self._total_bytes
            if end_bytes - before_bytes > size_bytes:
                break
            run.append(self._kept[index][0])
        return run

    def bytes_before(self, index: int) -> int:
        return self._kept[index][1]

    def release(self, stop: int) -> None:
        for index in range(self._first, stop):
            del self._kept[index]
        self._first = stop

    def skip(self, count: int, size_bytes: int) -> None:
        self._first = self._length = count
        self._total_bytes = size_bytes
