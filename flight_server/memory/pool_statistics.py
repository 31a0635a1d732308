"""PoolStatistics: the numbers of a :class:`~flight_server.memory.pool.MemoryPool`."""

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
