"""QueryLimits: the limits of a user's query. Needs no DuckDB."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QueryLimits:
    """Limits of the rule ``sql``.

    Args:
        memory_limit_bytes: address space of a process that runs queries, beyond what it has when it begins: the rows
            that go in, DuckDB's work, and the result. Outside the server's pool.
        duckdb_share: the part of it that DuckDB may use, so that DuckDB itself reports an allocation without room.
        deadline_seconds: for all work of a rule on one slice of rows, by the clock on the wall. A process works in one
            thread, so its CPU time is no more.
    """

    memory_limit_bytes: int = 256 << 20
    duckdb_share: float = 0.75
    deadline_seconds: float = 10.0


DEFAULT_LIMITS = QueryLimits()
