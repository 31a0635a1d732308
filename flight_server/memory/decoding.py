"""Decoding: room for the batches that files of sources are decoded into, beside the memory limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flight_server.protocol import InvalidRequest, OutOfBudget

from .pool import MemoryPool, Reservation

MIN_LIMIT_BYTES = 64 << 20
DEADLINE_SECONDS = 30.0
COPIES = 2
"""A batch, and its cast or the next batch."""


class Decoding:
    """All pulls together hold at most ``limit_bytes`` of decoded batches; a pull's thread waits for room up to
    ``DEADLINE_SECONDS``. It is an account of its own, because a pull that holds a batch waits for ``frames`` and
    ``arrivals``, and would wait for itself there.
    """

    def __init__(self, memory_limit_bytes: int) -> None:
        self.limit_bytes = max(MIN_LIMIT_BYTES, memory_limit_bytes // 8)
        self.pool = MemoryPool(self.limit_bytes, "decoding")

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """A function that holds room for a batch of so many bytes in place of the last one, until the block ends. It
        blocks while there is none.

        Raises:
            InvalidRequest: the batch is larger than one may be.
            OutOfBudget: there was no room until the deadline.
        """
        held: list[Reservation] = []

        def hold(size_bytes: int) -> None:
            if size_bytes * COPIES > self.limit_bytes:
                raise InvalidRequest(
                    f"it has a batch that takes {size_bytes} bytes when it is read, more than this server's "
                    f"limit of {self.limit_bytes // COPIES}: write it with smaller batches or row groups, or raise "
                    "--memory-limit",
                    limit_bytes=self.limit_bytes // COPIES,
                )
            held.clear()
            held.append(self._wait(size_bytes * COPIES))

        try:
            yield hold
        finally:
            held.clear()

    def _wait(self, size_bytes: int) -> Reservation:
        granted: list[Reservation] = []
        has_room = threading.Event()

        def take(room: Reservation) -> None:
            granted.append(room)
            has_room.set()

        request = self.pool.request(size_bytes, take)
        in_time = has_room.wait(DEADLINE_SECONDS)
        request.cancel()
        if not in_time:
            granted.clear()
            raise OutOfBudget(
                f"{size_bytes} bytes for a decoded batch ({self.pool.used_bytes} of {self.limit_bytes} in use by other "
                f"pulls) did not become free within {DEADLINE_SECONDS} s; try again later",
                wanted_bytes=size_bytes,
            )
        return granted[0]
