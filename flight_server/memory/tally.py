"""Tally: what of a pool's bytes belongs to one owner."""

from __future__ import annotations

from .pool import MemoryPool, Reservation


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
            self._peak_bytes = max(self._peak_bytes, self.used_bytes)
        reservation._pool = self
