"""QueryLimits: what a user's query may use. Needs no DuckDB."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QueryLimits:
    """Limits of the rule ``sql``.

    Args:
        memory_limit_bytes: DuckDB's memory of all queries with this limit together, outside the server's pool; and
            for each query the size of its result, and about the size of its input if rows are in it repeatedly.
        deadline_seconds: for each query, from its start. A run of the rule is two queries: the user's, and one that
            counts equal rows.
    """

    memory_limit_bytes: int = 256 << 20
    deadline_seconds: float = 10.0


DEFAULT_LIMITS = QueryLimits()
