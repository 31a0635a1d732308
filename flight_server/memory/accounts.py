"""Budget: the server's one MemoryPool, its accounts, the disk pool, and how streams wait for their bytes.

    memory limit
    ├── frames     5/8   frames and dictionaries in RAM
    │   └── metadata     at most 1/4: records and objects of datasets, partitions and frames (:class:`Metadata`)
    ├── sends      1/4   bytes that gRPC, HTTP and reads from disk hold on the way to readers
    │   └── unproven     at most 1/8: readers that have not yet proven that they take what they are sent
    │       └── further      at most 1/16: those of them that are not the first of their connection
    └── arrivals   1/8   messages that have arrived and wait for room in ``frames``
    beside the limit
    ├── arriving   1/8   what has come of messages that are not whole, 32 MiB and one message at least, and for a moment
    │                    twice as much (``transfer.arriving``)
    └── answers    1/16  or one answer: large answers that are no frames (``transfer.answer_room``)

The accounts do not borrow from each other, so no waits form a circle (``tests/integration/test_backpressure.py``
shows it over permuted schedules):

    a reader waits    for ``sends`` only, and then holds no bytes of any account. A reader that holds bytes of
                      ``sends`` is being written to, or read for from disk. A write ends when the peer takes the
                      bytes, when a reader of the bulk lane gives its room back (``outlet``), or with
                      :class:`~flight_server.protocol.ReaderTooSlow` (``eviction``).
    a producer waits  for ``frames``, until a deadline, and holds its message in ``arrivals``. Spilling frees
                      ``frames`` and needs no other account. It cannot free frames that are being written to a
                      reader (at most 1/4, because ``sends`` counts them, too), metadata (at most 1/4), and
                      dictionaries in force of running puts. 1/4, 1/4 and one message of 1/8 are 5/8: with room on
                      disk a producer waits for the disk only or, if dictionaries fill the account, for a put to end.
    a stream waits    for ``arrivals`` before its next message is read. The streams that hold bytes there free
                      them at their deadlines.
    an action waits   for ``answers``, until a deadline, and may hold its request's bytes in ``arrivals``. An answer is
                      made, and then written to its client, which ``eviction`` ends as a reader; it waits for no other
                      account, so ``why`` is answered however many readers take nothing.

Readers that take nothing
    gRPC and TLS do not give bytes back, so such a reader keeps the room of one message. A reader is *unproven* until it
    has taken ``PROOF_BYTES``, and again after each write that has lasted for ``STALL_SECONDS`` (:class:`Pace`).
    ``PROOF_BYTES`` is more than the buffers between the server and the peer hold, unless gRPC's client lets its window
    grow with bandwidth and delay. Unproven readers together hold at most half of ``sends``, whose last eighth is left
    for new ones (``pool``, "Waiting"). One that takes its bytes keeps its room from message to message. Proven readers
    wait for the rest of ``sends``, first come, first served. Readers that come within ``pool.FRESH_SECONDS`` may fill
    that eighth, too. If they take nothing, ``eviction`` ends them, once they have stalled for
    ``delivery.READER_STALL_SECONDS``, until those that wait have room: outside of the eighth, if they have waited for
    ``FRESH_SECONDS``. In a crowd of readers that take nothing, a good one looks like the others until it has got a
    message. So a connection's first unproven reader waits for none of its further ones, and each gets its chance soon:
    for it ``eviction`` ends readers that have not even taken their first message, much earlier. On the bulk lane
    without TLS such a reader holds no room, so all readers there are proven.

The true peak
    ``answers`` passes its limit by one answer at most (``transfer.answer_room``). ``frames`` can pass it, by the
    records of frames that are being published: up to 64 are counted at a time, 2 KiB for each producing stream.
    ``arrivals`` can, because a message that has arrived is counted whether it fits or not. So

        peak of the pool ≤ memory limit + max(0, producing streams x their message - memory limit / 8)
                           + producing streams x 2 KiB + the most of ``answers``, or twice the largest, and ``arriving``

    and the second term is 0 while the messages that can come at once fit the account.

Spare bytes
    Joined messages that are kept for readers behind (``lanes.grpc.joined_frames``) are bytes of ``sends``, at most 1/16
    of it. They save work only: :func:`reserve` drops them before it waits, and none is kept while a request waits, so
    no stream waits for them.

Beside the limit lies ``decoding``, for the decoded batches of sources' files. Not counted are the items that
deploy/README.md names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flight_server.concurrency import Waits
from flight_server.protocol import OutOfBudget

from .decoding import Decoding
from .pool import MemoryPool, Reservation

MIN_MEMORY_LIMIT_BYTES = 8 << 20
PROOF_BYTES = 16 << 20
STALL_SECONDS = 1.0
MAX_MESSAGE_BYTES = 256 << 20
MAX_SCHEMA_BYTES = 16 << 20
FRAME_BYTES = 512
"""A frame in RAM: the object, its payload, its reservation and its entry among those in RAM."""
RECORD_BYTES = 32
"""A frame, in RAM or not, in a ``FrameTable``: 28 bytes, and what a growing array keeps in reserve."""
DICTIONARY_BYTES = 1024
"""A dictionary message, in RAM or not: the object, its place on disk, and a state that it is the latest of."""
DATASET_BYTES = 5120
"""A dataset: the object, its first partition, its entries in the catalogue, a durable one's files, and up to 1 KiB
for keys of instances' dictionaries, which CPython shares or not."""
PARTITION_BYTES = 1536
"""Each further partition that a request has asked for."""
ATTEMPT_BYTES = 1280
"""One attempt."""


class Metadata:
    """Reserves the RAM that datasets, partitions, attempts, frames and dictionaries take beside their messages.
    ``pool`` is the account; None for one without a limit.

    All of it but ``FRAME_BYTES`` is counted in the account ``metadata`` before it is taken, with the constants above,
    which are upper bounds (``tests/flight_server/memory/test_metadata.py`` measures them). ``FRAME_BYTES`` are reserved
    in ``frames`` with the frame's message, and freed when the frame leaves RAM. Nothing in ``metadata`` can be spilled.
    A record stays until its frame is released, a dictionary's object until the last frame that needs it is; the others
    stay with their dataset.
    """

    __slots__ = ("pool",)

    def __init__(self, pool: MemoryPool | None = None) -> None:
        self.pool = MemoryPool(None, "metadata") if pool is None else pool

    def reserve(self, size_bytes: int, what: str, **detail: Any) -> Reservation:
        """Reserve bytes for ``what``, before it is made. Never waits. Raises OutOfBudget if the account is full."""
        reservation = self.pool.empty()
        self.grow(reservation, size_bytes, what, **detail)
        return reservation

    def grow(self, reservation: Reservation, size_bytes: int, what: str, **detail: Any) -> None:
        """Add bytes to a reservation, as :meth:`reserve` does."""
        pool = self.pool
        # Only this account's own limit counts: the spiller makes room in ``frames``, which it is a part of.
        if size_bytes and pool.limit_bytes is not None and pool.used_bytes + size_bytes > pool.limit_bytes:
            raise OutOfBudget(
                f"there is no room for {what}: what this server keeps in RAM of datasets, partitions and frames "
                f"takes {pool.used_bytes} of {pool.limit_bytes} bytes; drop datasets, write fewer and larger "
                "batches, or raise --memory-limit",
                wanted_bytes=size_bytes,
                **detail,
            )
        reservation.grow(size_bytes)


class Budget:
    """The pools of one server. Without ``disk_limit_bytes`` segments take all the room of the file system."""

    def __init__(self, memory_limit_bytes: int, disk_limit_bytes: int | None) -> None:
        self.memory = MemoryPool(memory_limit_bytes, "memory")
        self.frames = self.memory.account("frames", memory_limit_bytes * 5 // 8)
        self.metadata = Metadata(self.frames.part("metadata", memory_limit_bytes // 4))
        self.sends = self.memory.account("sends", memory_limit_bytes // 4)
        self.unproven = self.sends.part("unproven", memory_limit_bytes // 8)
        self.further = self.unproven.part("further", memory_limit_bytes // 16)
        self.arrivals = self.memory.account("arrivals", memory_limit_bytes // 8)
        self.answers = self.memory.account("answers", memory_limit_bytes // 16)
        self.decoding = Decoding(memory_limit_bytes)
        self.disk = MemoryPool(disk_limit_bytes, "disk")

    def sends_for(self, pace: Pace) -> MemoryPool:
        """The pool that gives a reader of that pace its room."""
        if pace.proven:
            return self.sends
        return self.unproven if pace.first else self.further

    @property
    def max_schema_bytes(self) -> int:
        """The largest schema: one that is put and held has room."""
        limit = self.memory.limit_bytes
        assert limit is not None
        return min(MAX_SCHEMA_BYTES, limit // 16)

    @property
    def max_message_bytes(self) -> int:
        """The largest message: read back from disk and copied by gRPC, it fits ``sends``."""
        limit = self.memory.limit_bytes
        assert limit is not None
        return min(MAX_MESSAGE_BYTES, limit // 8)


class Pace:
    """Whether one reader takes its bytes; see "Readers that take nothing". With ``proven`` it is proven for good."""

    def __init__(self, *, proven: bool = False) -> None:
        self._always = proven
        self._stalled = False
        self._taken_bytes = 0
        self.begun = False  # it has taken a message
        self.rows = 0  # given to it
        self.size_bytes = 0
        self.first = True  # of its connection
        self.on_stall: Callable[[], None] | None = None

    @property
    def proven(self) -> bool:
        return self._always or self._taken_bytes >= PROOF_BYTES

    def allowed_bytes(self, most_bytes: int) -> int:
        """How much it may be given at once, of ``most_bytes``: no more than it has taken since it last stalled."""
        return most_bytes if self._always else 0 if self._stalled else min(most_bytes, self._taken_bytes)

    def took(self, size_bytes: int) -> None:
        """The reader's transport has taken these bytes. After a stall the count begins again at 0."""
        self.size_bytes += size_bytes
        self._taken_bytes = 0 if self._stalled else self._taken_bytes + size_bytes
        self._stalled = False
        self.begun = True

    def count(self, rows: int, size_bytes: int) -> None:
        """The reader was given these, and is not watched."""
        self.rows += rows
        self.size_bytes += size_bytes

    def stall(self) -> None:
        """A write to the reader has lasted for ``STALL_SECONDS``: called at each look of ``eviction``."""
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
    fresh: bool = True,
) -> Reservation:
    """Wait for bytes of a pool (``pool``, "Waiting"), once ``drop_spare`` of the pool around all parts was called.
    Cancelling frees what was granted. ``queued`` is called if the request has to wait, after it was queued. Raises
    OutOfBudget: not granted within ``deadline_seconds``.
    """
    at_once = pool.try_reserve(size_bytes)
    if at_once is None and pool.whole.drop_spare is not None:
        pool.whole.drop_spare()
        at_once = pool.try_reserve(size_bytes)
    if at_once is not None:
        return at_once
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Reservation] = loop.create_future()

    def deliver(reservation: Reservation) -> None:
        if not future.done():
            future.set_result(reservation)

    def granted(reservation: Reservation) -> None:
        # Called in the thread that frees bytes, also after the loop was closed (RuntimeError).
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, reservation)

    request = pool.request(size_bytes, granted, fresh=fresh)
    try:
        if queued is not None:
            queued()
        with waits.enter(
            "budget", dataset=dataset, partition=partition, peer=peer, deadline_seconds=deadline_seconds
        ):
            async with asyncio.timeout(deadline_seconds):
                return await future
    except BaseException as error:
        # Granted at this moment: the exception may keep this frame alive, and must not keep the bytes.
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
