"""Budget: the server's one MemoryPool, its accounts, the disk pool, and how streams wait for their bytes.

    memory limit
    ├── frames     5/8   frames and dictionaries in RAM
    │   └── metadata     at most 1/4: records and objects of datasets, partitions and frames (see ``metadata``)
    ├── sends      1/4   bytes that gRPC, HTTP and reads from disk hold on the way to readers
    │   └── unproven     at most 1/8: readers that have not yet proven that they take what they are sent
    └── arrivals   1/8   messages that have arrived and wait for room in ``frames``

The accounts do not borrow from each other, so no waits form a circle
(``tests/integration/test_backpressure.py`` shows it over permuted schedules):

    a reader waits    for ``sends`` only, and then holds no bytes of any account. A reader that holds bytes of
                      ``sends`` is being written to, or read for from disk. A write ends when the peer takes the
                      bytes, when a reader of the bulk lane gives its room back (``outlet``), or with
                      :class:`~flight_server.protocol.ReaderTooSlow` when the peer takes nothing while other
                      readers wait (``eviction``).
    a producer waits  for ``frames``, until a deadline, and holds its message in ``arrivals``. Spilling frees
                      ``frames`` and needs no other account. It cannot free frames that are being written to a
                      reader (at most 1/4, because each has as much room in ``sends``), metadata (at most 1/4),
                      and the dictionaries in force of running puts, which their decoders need. 1/4, 1/4 and
                      one message of 1/8 are 5/8: with room on disk a producer waits for the disk only, unless
                      such dictionaries fill the account: then it waits for one of these puts to end.
    a stream waits    for ``arrivals`` before its next message is read. The streams that hold bytes there free
                      them at their deadlines.

Readers that take nothing
    gRPC and TLS do not give bytes back, so a reader that takes nothing keeps the room of one message. A reader is
    *unproven* until it has taken ``PROOF_BYTES``, and again after each write that has lasted for ``STALL_SECONDS``
    (:class:`Pace`). ``PROOF_BYTES`` is more than the buffers between the server and a peer that reads nothing hold,
    unless gRPC's client lets its window grow with bandwidth and delay.
    Unproven readers together hold at most half of ``sends``; one that takes what it is sent keeps its room from
    message to message. The last eighth of that half is left for new readers (``pool``, "Waiting"). Proven readers
    wait for the rest of ``sends``, first come, first served.
    Readers that come within ``pool.FRESH_SECONDS`` may fill that eighth, too. If they take nothing, the next reader
    waits until the first of them have stalled for ``delivery.READER_STALL_SECONDS``. Then the server ends one at
    each look (``eviction``) until the next reader has its room: outside of the eighth, if it has waited for
    ``FRESH_SECONDS`` by then.
    On the bulk lane without TLS a reader that takes nothing holds no room, so all readers there are proven.

The true peak
    ``sends`` never passes its limit. ``frames`` can, by the records of frames that were admitted and are being
    published: they are counted up to 64 at a time, 2 KiB for each producing stream. ``arrivals`` can, because a
    message that has arrived is counted whether it fits or not, one for each producing stream. So

        peak of the pool ≤ memory limit + max(0, producing streams x their message - memory limit / 8)
                           + producing streams x 2 KiB

    and the second term is 0 while the messages that can come at once fit the account.

Not counted are the objects of Python and of libraries (the stated constant of the README), the page cache, the
kernel's socket buffers, and messages that are still arriving: at most one for each producing stream, or
``bulk_put.READ_BYTES`` of small ones. A message is counted from the moment it is whole.
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
        """The largest schema: 1/16 of the limit, at most 16 MiB, so that one that is put and held has room."""
        limit = self.memory.limit_bytes
        assert limit is not None
        return min(MAX_SCHEMA_BYTES, limit // 16)

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the server accepts: 1/8 of the limit, at most 256 MiB.

        One such message, read back from disk and copied by gRPC, fits ``sends``.
        """
        limit = self.memory.limit_bytes
        assert limit is not None
        return min(MAX_MESSAGE_BYTES, limit // 8)


class Pace:
    """Whether one reader takes what it is sent; see "Readers that take nothing".

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
        """The reader's transport has taken ``size_bytes``. After a stall the count begins again at 0."""
        self._taken_bytes = 0 if self._stalled else self._taken_bytes + size_bytes
        self._stalled = False

    def stall(self) -> None:
        """A write to the reader has lasted for ``STALL_SECONDS``; ``eviction`` says so at each look."""
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
    """Wait for bytes of a pool (``pool``, "Waiting"). Cancelling frees what was granted.

    Args:
        queued: called once if it has to wait, after the request was queued.

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
        # Called in the thread that frees bytes, also after the loop was closed (RuntimeError): then no task waits.
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
        # Granted at the moment of the deadline or the cancellation: the exception may keep this frame alive, and
        # must not keep the bytes.
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
