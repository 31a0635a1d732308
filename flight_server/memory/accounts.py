"""Budget: the server's one MemoryPool, its accounts, the disk pool, and how streams wait for them.

    memory limit
    ├── frames     5/8   frames and dictionaries in RAM
    │   └── metadata     at most 1/4: what is kept of datasets, partitions and frames until they go (see ``metadata``)
    ├── sends      1/4   what gRPC, HTTP and reads from disk hold on the way to readers
    │   └── unproven  at most 1/8 of it is for readers that have not shown yet that they take what they get
    └── arrivals   1/8   messages that have come in and wait for room among the frames

The accounts do not borrow from each other. That is what makes it provable that nothing waits in a
circle (``tests/integration/test_backpressure.py`` does so over permuted schedules):

    a reader waits    for ``sends`` only, holding no bytes of any account. The readers that hold some are
                      being written to, or read from disk; the writes end when their peers take the
                      bytes, when a reader of the bulk lane gives its room back (``outlet``), or by
                      :class:`~flight_server.protocol.ReaderTooSlow` when a peer takes nothing while others
                      wait (``eviction``).
    a producer waits  for ``frames``, holding its message in ``arrivals``, until a deadline. Spilling
                      empties ``frames`` and needs neither of the others; what it cannot empty is what
                      is just being written to a reader, and that is no more than ``sends``, because
                      each such frame has as much room there; metadata; and the dictionaries in force of
                      puts that run, which their decoders need. 1/4, 1/4 and one message of 1/8 are 5/8: so
                      with room on disk a producer waits for the disk only, unless such dictionaries fill the
                      account: then it waits for one of these puts to end, until its deadline.
    before a message  is read, its stream waits for ``arrivals``, which those who hold it leave at
                      their deadline.

Readers that take nothing
    What was handed to gRPC, or to TLS, cannot be taken back: a reader that takes nothing keeps the room of
    one message. It must not keep it from readers that take what they get. So a reader is *unproven* until it
    has taken ``PROOF_BYTES``, which is more than the buffers between the server and a peer that reads nothing
    hold, unless gRPC's client lets its window grow with bandwidth and delay, and again after each write that has
    lasted for ``STALL_SECONDS`` (:class:`Pace`). The unproven together hold at most half of ``sends``; one that
    takes what it gets keeps its room from message to message, and an eighth of that half is left for readers
    that have just come (``memory``, "Waiting"). The proven wait for the rest of ``sends``, first come, first
    served.
    Readers that come within ``memory.FRESH_SECONDS`` may fill that eighth, too. If they take nothing, the next
    reader waits until the first of them have stalled for ``delivery.READER_STALL_SECONDS``. Then the server ends one
    of them at each look (``eviction``) until the next reader has its room: beside the eighth, if
    it has waited for ``FRESH_SECONDS`` by then.
    On the bulk lane without TLS a reader that takes nothing holds no room at all, so all there are proven.

The largest message a server accepts is 1/8 of the limit: so that one message, read back from disk
and copied by gRPC, fits the account that it is sent from.

The true peak
    ``sends`` never passes its limit. ``frames`` can, by the records of frames that were admitted and are just
    being published: they are counted up to 64 at a time, 2 KiB for each producing stream. ``arrivals`` can: a
    message has its bytes before anybody can say whether they fit, and each producing stream may have one in
    the same moment. So

        peak of the pool ≤ memory limit + max(0, producing streams x their message - memory limit / 8)
                           + producing streams x 2 KiB

    and the second part is 0 while the messages that can come at once fit the account.

What is not counted: Python's and the libraries' own objects (the stated constant of the README), the
page cache, and the kernel's socket buffers. A message is counted from the moment it is whole; while
it still arrives, its lane holds it uncounted, at most one for each producing stream (of small ones, what
``intake.READ_BYTES`` hold).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from flight_server.concurrency import Waits
from flight_server.protocol import OutOfBudget

from .metadata import Metadata
from .pool import MemoryPool, Reservation

MIN_MEMORY_LIMIT_BYTES = 8 << 20
PROOF_BYTES = 16 << 20
STALL_SECONDS = 1.0
MAX_MESSAGE_BYTES = 256 << 20
MAX_SCHEMA_BYTES = 16 << 20


class Budget:
    """See the module's text.

    Args:
        memory_limit_bytes: of the whole server.
        disk_limit_bytes: of all segments; None for as much as the file system has.
    """

    def __init__(self, memory_limit_bytes: int, disk_limit_bytes: int | None) -> None:
        self.memory = MemoryPool(memory_limit_bytes, "memory")
        self.frames = self.memory.account("frames", memory_limit_bytes * 5 // 8)
        self.metadata = Metadata(self.frames.part("metadata", memory_limit_bytes // 4))
        self.sends = self.memory.account("sends", memory_limit_bytes // 4)
        self.unproven = self.sends.part("unproven", memory_limit_bytes // 8)
        self.arrivals = self.memory.account("arrivals", memory_limit_bytes // 8)
        self.disk = MemoryPool(disk_limit_bytes, "disk")

    @property
    def max_schema_bytes(self) -> int:
        """The largest schema, so that one that is being put and held has room."""
        limit = self.memory.limit_bytes
        assert limit is not None
        return min(MAX_SCHEMA_BYTES, limit // 16)

    @property
    def max_message_bytes(self) -> int:
        """The largest message that this budget can carry."""
        limit = self.memory.limit_bytes
        assert limit is not None
        return min(MAX_MESSAGE_BYTES, limit // 8)


class Pace:
    """Whether one reader takes what it gets; see "Readers that take nothing".

    Args:
        proven: from the start and for good.
    """

    def __init__(self, *, proven: bool = False) -> None:
        self._always = proven
        self._stalled = False
        self._taken_bytes = 0
        self.on_stall: Callable[[], None] | None = None

    @property
    def proven(self) -> bool:
        return self._always or self._taken_bytes >= PROOF_BYTES

    def took(self, size_bytes: int) -> None:
        """The reader's transport has taken so many bytes."""
        self._taken_bytes = 0 if self._stalled else self._taken_bytes + size_bytes
        self._stalled = False

    def stall(self) -> None:
        """A write to it has lasted for ``STALL_SECONDS``. Called again while it lasts."""
        self._stalled = True
        if self.on_stall is not None:
            self.on_stall()


async def reserve(
    pool: MemoryPool,
    size_bytes: int,
    waits: Waits,
    *,
    dataset: str | None = None,
    partition: int | None = None,
    peer: str | None = None,
    deadline_seconds: float | None = None,
    queued: Callable[[], None] | None = None,
) -> Reservation:
    """Wait for bytes of a pool, first come, first served. Cancelling frees what was granted.

    Args:
        queued: called once if it has to wait, when the pool knows what is wanted.

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
        # Bytes may come back in any thread, and after the loop has been closed: then nobody waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, reservation)

    request = pool.request(size_bytes, granted)
    try:
        if queued is not None:
            queued()
        with waits.enter(
            "budget", dataset=dataset, partition=partition, peer=peer, deadline_seconds=deadline_seconds
        ):
            async with asyncio.timeout(deadline_seconds):
                return await future
    except BaseException as error:
        # Granted in the moment of the deadline or the cancellation: an exception on its way may live
        # longer than it should, and must not keep the bytes.
        if future.done() and not future.cancelled():
            future.result().free()
        if not isinstance(error, TimeoutError):
            raise
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
