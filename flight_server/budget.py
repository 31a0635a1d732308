"""Budget: the server's one MemoryPool, its accounts, the disk pool, and how streams wait for them.

    memory limit
    ├── frames     5/8   frames and dictionaries in RAM
    ├── sends      1/4   what gRPC, HTTP and reads from disk hold on the way to readers
    └── arrivals   1/8   messages that have come in and wait for room among the frames

The accounts do not borrow from each other. That is what makes it provable that nothing waits in a
circle: ``frames`` is emptied by spilling, which needs neither of the others; ``sends`` is emptied by
readers, or by ending a reader that takes nothing (:class:`~flight_server.errors.ReaderTooSlow`);
``arrivals`` is emptied into ``frames``, or at a deadline, by refusing. Readers need only ``sends``.

The largest message a server accepts is 1/8 of the limit: so that one message, read back from disk
and copied by gRPC, fits the account that it is sent from.

What is not counted: Python's and the libraries' own objects (the stated constant of the README), the
page cache, and the kernel's socket buffers. A message is counted from the moment it is whole; while
it still arrives, gRPC holds it uncounted, at most one for each producing stream.
"""

from __future__ import annotations

import asyncio

from .errors import OutOfBudget
from .memory import MemoryPool, Reservation
from .waits import Waits

MIN_MEMORY_LIMIT_BYTES = 8 << 20
MAX_MESSAGE_BYTES = 256 << 20


class Budget:
    """See the module's text.

    Args:
        memory_limit_bytes: of the whole server.
        disk_limit_bytes: of all segments; None for as much as the file system has.
    """

    def __init__(self, memory_limit_bytes: int, disk_limit_bytes: int | None) -> None:
        self.memory = MemoryPool(memory_limit_bytes, "memory")
        self.frames = self.memory.account("frames", memory_limit_bytes * 5 // 8)
        self.sends = self.memory.account("sends", memory_limit_bytes // 4)
        self.arrivals = self.memory.account("arrivals", memory_limit_bytes // 8)
        self.disk = MemoryPool(disk_limit_bytes, "disk")

    @property
    def max_message_bytes(self) -> int:
        """The largest message that this budget can carry."""
        limit = self.memory.limit_bytes
        assert limit is not None
        return min(MAX_MESSAGE_BYTES, limit // 8)


async def reserve(
    pool: MemoryPool,
    size_bytes: int,
    waits: Waits,
    *,
    dataset: str | None = None,
    partition: int | None = None,
    peer: str | None = None,
    deadline_seconds: float | None = None,
) -> Reservation:
    """Wait for bytes of a pool, first come, first served. Cancelling frees what was granted.

    Raises:
        OutOfBudget: not granted within ``deadline_seconds``.
    """
    at_once = pool.try_reserve(size_bytes)
    if at_once is not None:
        return at_once
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Reservation] = loop.create_future()

    def deliver(reservation: Reservation) -> None:
        if not future.done():
            future.set_result(reservation)

    def granted(reservation: Reservation) -> None:
        # Bytes may come back in any thread, and after the loop has stopped.
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, reservation)

    request = pool.request(size_bytes, granted)
    try:
        with waits.enter(
            "budget", dataset=dataset, partition=partition, peer=peer, deadline_seconds=deadline_seconds
        ):
            async with asyncio.timeout(deadline_seconds):
                return await future
    except TimeoutError:
        raise OutOfBudget(
            f"{size_bytes} bytes of the account {pool.name!r} ({pool.used_bytes} of {pool.limit_bytes} in use) "
            f"did not become free within {deadline_seconds} s; try again later, drop datasets, or raise "
            "--memory-limit or --disk-limit",
            dataset=dataset,
            partition=partition,
            wanted_bytes=size_bytes,
        ) from None
    finally:
        request.cancel()
