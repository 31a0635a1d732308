"""MemoryPool and Reservation: exact, synchronous accounting of bytes.

Guarantee: ``used_bytes`` is the sum of the live reservations of a pool, its accounts and its parts, and ``peak_bytes``
its exact maximum. A pool grants nothing beyond its limit, with three exceptions: ``grow`` and ``reserve`` count bytes
that exist already; an empty pool grants a ``request`` above its limit; an account's grants are not checked against its
parent's limit.

The object that holds bytes holds their :class:`Reservation`, which frees itself with its last reference. ``free`` is
only for releasing early.

Accounts
    ``pool.account(name, limit_bytes)`` makes a child with a limit of its own, whose bytes its parent counts, too. The
    limits of siblings should add up to the parent's: then no account can starve another (``accounts``).

Parts
    ``pool.part(name, limit_bytes)`` makes a child whose grants must fit both limits; a part can have parts, too. The
    queues of the pool and of all parts are served by turns. A queue whose part is full is passed over, so it delays no
    request of the others. The requests of a part go before those of its own parts.

Keeping
    One part in ``kept_parts`` of the limit is kept for ``try_grow(size, of_kept=share)``, for work that takes bytes to
    give more of them back: it may take that share of the kept bytes.

Waiting
    ``request(size, granted)`` queues a callback. A pool's queue is served first come, first served: small requests do
    not overtake a large one. A part's queue is served from both ends by turns, the newest first: among many readers
    that give nothing back, both a new one and the oldest are served soon. A request that has waited for
    ``FRESH_SECONDS`` gets nothing of the last eighth of its part, or of one around it, unless that is empty.
    The callback gets the reservation, in the thread that gave bytes back, so it must only pass it on
    (``loop.call_soon_threadsafe``).

Concurrency
    All methods may be called from any thread. No callback runs while the lock is held.
    Finalizers give bytes back without a wait for the lock (:class:`ReturnLock`), and change no pool in a step's middle.
    The design follows DataFusion's ``memory_pool`` module; accounts and waiting are ours.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

FRESH_SECONDS = 1.0
KEPT_FOR_FRESH = 8  # a part of 1/8


class ReturnLock:
    """A lock inside which bytes are counted. A thread may enter it again.

    :meth:`give_back` waits for no lock, so a finalizer may call it, in any thread, inside any lock that the thread
    holds. The bytes are counted before it returns or, while a thread is inside this lock, when that thread leaves it;
    never in the middle of a step inside.
    """

    __slots__ = ("_depth", "_lock", "_returned")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0  # how often the thread inside has entered
        self._returned: deque[tuple[MemoryPool, int]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        self._lock.release()
        if self._returned:
            self._settle()

    def give_back(self, pool: MemoryPool, size_bytes: int) -> None:
        self._returned.append((pool, size_bytes))
        self._settle()

    def count(self) -> list[MemoryPool]:
        """Count the bytes given back; the pools that got them. The caller is inside."""
        pools = []
        while self._returned:
            pool, size_bytes = self._returned.popleft()
            pool._count(-size_bytes)
            pools.append(pool)
        return pools

    def _settle(self) -> None:
        lock = self._lock
        # A thread that is inside looks again after it has left: it then sees everything appended until then.
        while self._returned and lock.acquire(blocking=False):
            if self._depth:
                lock.release()
                return
            self._depth = 1
            pool = None
            try:
                if self._returned:  # else another thread has just counted it
                    pool, size_bytes = self._returned.popleft()
                    pool._count(-size_bytes)
            finally:
                self._depth = 0
                lock.release()
            if pool is not None:
                pool._serve_all()


class Request:
    """A place in a pool's queue."""

    __slots__ = ("_granted", "_pool", "since", "size_bytes", "state")

    def __init__(
        self, pool: MemoryPool, size_bytes: int, granted: Callable[[Reservation], None], *, fresh: bool
    ) -> None:
        self._pool = pool
        self._granted: Callable[[Reservation], None] | None = granted
        self.size_bytes = size_bytes
        self.since = time.monotonic() if fresh else -math.inf
        self.state = "waiting"

    def cancel(self) -> None:
        """Leave the queue, which may grant requests behind; a grant stays with its callback. Twice is fine."""
        self._pool._cancel(self)


class Reservation:
    """Bytes of one pool."""

    __slots__ = ("pool", "size_bytes")

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self.size_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Add bytes that exist already, whether they fit or not."""
        self.pool._add(size_bytes)
        self.size_bytes += size_bytes

    def try_grow(self, size_bytes: int, *, of_kept: float = 0.0) -> bool:
        """Add bytes if they fit and no request waits before; False changes nothing. ``of_kept``: see "Keeping"."""
        if not self.pool._try_add(size_bytes, of_kept=of_kept):
            return False
        self.size_bytes += size_bytes
        return True

    def shrink(self, size_bytes: int) -> None:
        """Give some of the bytes back. Raises ValueError, and changes nothing, if it holds fewer."""
        if size_bytes > self.size_bytes:
            raise ValueError(f"cannot shrink a reservation of {self.size_bytes} bytes by {size_bytes}")
        self.size_bytes -= size_bytes
        self.pool._lock.give_back(self.pool, size_bytes)

    def split(self, size_bytes: int) -> Reservation:
        """Move some of the bytes to a reservation of their own; the pool sees no change. Raises as :meth:`shrink`."""
        if size_bytes > self.size_bytes:
            raise ValueError(f"cannot split {size_bytes} bytes off a reservation of {self.size_bytes}")
        other = Reservation(self.pool)
        self.size_bytes, other.size_bytes = self.size_bytes - size_bytes, size_bytes
        return other

    def free(self) -> None:
        """Give all bytes back. Twice is fine."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        if size_bytes:
            self.pool._lock.give_back(self.pool, size_bytes)

    def __del__(self) -> None:
        # At the interpreter's end a half-built object may have lost its attributes.
        if size_bytes := getattr(self, "size_bytes", 0):
            self.size_bytes = 0
            self.pool._lock.give_back(self.pool, size_bytes)

    def __repr__(self) -> str:
        return f"<Reservation {self.size_bytes} bytes of {self.pool.name}>"


class MemoryPool:
    """A limit and the bytes reserved under it. Without a limit it only counts."""

    def __init__(
        self,
        limit_bytes: int | None,
        name: str = "memory",
        _parent: MemoryPool | None = None,
        *,
        _within: bool = False,
    ) -> None:
        if limit_bytes is not None and limit_bytes <= 0:
            raise ValueError(f"the limit of pool {name!r} must be positive, not {limit_bytes}")
        self.name = name
        self.limit_bytes = limit_bytes
        self._parent = _parent
        self._lock: ReturnLock = ReturnLock() if _parent is None else _parent._lock
        self.used_bytes = 0  # changed here only; an attribute, because each frame reads it several times
        self.peak_bytes = 0
        self._queue: deque[Request] = deque()
        self._requests = 0  # of the pool around all parts: how many wait in the queues of all its sharers
        self._accounts: list[MemoryPool] = []
        self.kept_parts: int | None = None  # see "Keeping"
        self.drop_spare: Callable[[], object] | None = None  # see ``accounts.reserve``
        # A part's ``whole`` is the pool around all parts, which serves the queues of its ``_sharers``, itself among
        # them, in this order.
        self.whole: MemoryPool = _parent.whole if _within and _parent is not None else self
        self._sharers: list[MemoryPool] = [self]
        # This pool, the parts around it, and the pool around those.
        self._around: tuple[MemoryPool, ...] = (
            self,
            *(_parent._around if _within and _parent is not None else ()),
        )
        self._newest_first = _within
        self.granted = 0  # how many requests that had to wait were granted

    def account(self, name: str, limit_bytes: int | None) -> MemoryPool:
        """See "Accounts". The parent keeps it for its statistics."""
        child = MemoryPool(limit_bytes, name, _parent=self)
        self._accounts.append(child)
        return child

    def part(self, name: str, limit_bytes: int) -> MemoryPool:
        child = MemoryPool(limit_bytes, name, _parent=self, _within=True)
        self._accounts.append(child)
        self.whole._sharers.append(child)
        return child

    @property
    def available_bytes(self) -> int | None:
        """The free bytes of its limit; None when unlimited."""
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.used_bytes)

    @property
    def wanted_bytes(self) -> int:
        return sum([request.size_bytes for request in list(self._queue)]) if self._queue else 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def has_requests(self) -> bool:
        """Whether a request waits in the queue of the pool around all parts, or of any part."""
        return self.whole._requests > 0

    def lacks(self, held: MemoryPool) -> bool:
        """Whether the oldest request waits for bytes of this kind: ``held`` is the pool that is full, or in it."""
        with self._lock:
            if not self._queue or self._behind():
                return False
            return self._full_for(self._queue[0]) in held._around

    def accounts(self) -> list[MemoryPool]:
        return list(self._accounts)

    def empty(self) -> Reservation:
        return Reservation(self)

    def reserve(self, size_bytes: int) -> Reservation:
        reservation = Reservation(self)
        reservation.grow(size_bytes)
        return reservation

    def try_reserve(self, size_bytes: int) -> Reservation | None:
        if not self._try_add(size_bytes):
            return None
        reservation = Reservation(self)
        reservation.size_bytes = size_bytes
        return reservation

    def request(
        self, size_bytes: int, granted: Callable[[Reservation], None], *, fresh: bool = True
    ) -> Request:
        """Queue for a reservation. ``granted`` may be called before this returns. Requests alone fill a pool up to
        its limit or, if it is larger, the largest request. Without ``fresh`` it is one that has waited for
        ``FRESH_SECONDS`` already.
        """
        request = Request(self, size_bytes, granted, fresh=fresh)
        with self._lock:
            self._queue.append(request)
            self.whole._requests += 1
        self.whole._serve()
        return request

    def exchange(self, release: Callable[[], object], size_bytes: int) -> Reservation | None:
        """Call ``release``, and reserve before the queue gets what it frees; None if the bytes do not fit even so."""
        with self._lock:
            release()
            returned = self._lock.count()
            reservation = None
            if self._fits(size_bytes):
                reservation = Reservation(self)
                reservation.grow(size_bytes)
        for pool in returned:
            pool._serve_all()
        return reservation

    # The pool's side of Reservation and Request.

    def _fits(self, size_bytes: int) -> bool:
        for pool in self._around:
            if pool.limit_bytes is not None and pool.used_bytes + size_bytes > pool.limit_bytes:
                return False
        return True

    def _fits_here(self, size_bytes: int) -> bool:
        return self.limit_bytes is None or self.used_bytes + size_bytes <= self.limit_bytes

    def _count(self, size_bytes: int) -> None:
        pool: MemoryPool | None = self
        while pool is not None:
            pool.used_bytes += size_bytes
            if pool.used_bytes > pool.peak_bytes:
                pool.peak_bytes = pool.used_bytes
            pool = pool._parent

    def _add(self, size_bytes: int) -> None:
        if size_bytes < 0:
            raise ValueError(f"cannot grow by {size_bytes} bytes")
        with self._lock:
            self._count(size_bytes)

    def _try_add(self, size_bytes: int, *, of_kept: float = 0.0) -> bool:
        if size_bytes < 0:
            raise ValueError(f"cannot grow by {size_bytes} bytes")
        limit_bytes, whole = self.limit_bytes or 0, self.whole
        kept_bytes = int(limit_bytes // self.kept_parts * (1 - of_kept)) if self.kept_parts else 0
        with self._lock:
            waited = whole._requests and (self._queue or self._behind() or whole._next_queue() is not None)
            if waited or not self._fits(size_bytes + kept_bytes):
                return False
            self._count(size_bytes)
            return True

    def _cancel(self, request: Request) -> None:
        with self._lock:
            if request.state == "waiting":
                request.state = "cancelled"
                self._queue.remove(request)
                self.whole._requests -= 1
            request._granted = None
        self.whole._serve()

    def _serve_all(self) -> None:
        """After this pool got bytes back."""
        if self.whole._requests:
            self.whole._serve()

    def _serve(self) -> None:
        granted: list[tuple[Callable[[Reservation], None] | None, Reservation]] = []
        with self._lock:
            while (queue_end := self._next_queue()) is not None:
                pool, end = queue_end
                request = pool._queue[end]
                if not (self._fits_here(request.size_bytes) or self.used_bytes == 0):
                    break
                pool._queue.pop() if end else pool._queue.popleft()
                self._requests -= 1
                pool._newest_first = pool is not self and not pool._newest_first
                self._sharers.remove(pool)
                self._sharers.append(pool)
                pool.granted += 1
                request.state = "granted"
                reservation = Reservation(pool)
                reservation.grow(request.size_bytes)
                callback, request._granted = request._granted, None
                granted.append((callback, reservation))
        # Outside the lock, because the callback may reserve, free or cancel.
        while granted:
            callback, reservation = granted.pop(0)
            if callback is not None:
                callback(reservation)
            del reservation

    def _next_queue(self) -> tuple[MemoryPool, int] | None:
        """The next queue in turn whose part can grant its head, and the end that is served."""
        for pool in self._sharers:
            if pool._queue and not pool._behind() and (end := pool._next_end()) is not None:
                return pool, end
        return None

    def _behind(self) -> bool:
        """Whether a request of a part around this one waits, which goes before."""
        return any(pool._queue for pool in self._around[1:-1])

    def _next_end(self) -> int | None:
        if self.whole is self:
            return 0
        for end in (-1, 0) if self._newest_first else (0, -1):
            if self._full_for(self._queue[end]) is self.whole:
                return end
        return None

    def _full_for(self, request: Request) -> MemoryPool:
        """The narrowest part that has no room for the request; the pool around if all parts have."""
        fresh = request.since >= time.monotonic() - FRESH_SECONDS
        for pool in self._around[:-1]:
            limit_bytes = pool.limit_bytes
            assert limit_bytes is not None
            kept_bytes = 0 if fresh else limit_bytes // KEPT_FOR_FRESH
            if pool.used_bytes and not pool._fits_here(request.size_bytes + kept_bytes):
                return pool
        return self.whole


class Tally(MemoryPool):
    """Counts some of a pool's bytes, and has no limit or queue of its own: the pool decides who gets bytes."""

    def __init__(self, pool: MemoryPool, name: str) -> None:
        super().__init__(None, name, _parent=pool, _within=True)
        self._pool = pool

    @property
    def available_bytes(self) -> int | None:
        """Those of the pool."""
        return self._pool.available_bytes

    def take(self, reservation: Reservation) -> None:
        """Count a reservation of the pool here, too, until it is freed. The pool sees no change."""
        if reservation.pool is not self._pool:
            raise ValueError(f"{reservation!r} is none of {self._pool.name}")
        with self._lock:
            self.used_bytes += reservation.size_bytes
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        reservation.pool = self
