"""PoolStatistics: what a :class:`~flight_server.memory.pool.MemoryPool` says of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolStatistics:
    """One consistent reading of a pool."""

    name: str
    limit_bytes: int | None
    used_bytes: int
    peak_bytes: int
    waiting: int
