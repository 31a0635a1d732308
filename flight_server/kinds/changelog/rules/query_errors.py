"""The limits of a user's query, and what errors say of it. Needs no DuckDB."""

from __future__ import annotations

from dataclasses import dataclass

from flight_server.protocol import InvalidRequest, OutOfBudget, Unavailable


@dataclass(frozen=True)
class QueryLimits:
    """The limits of a query of the rule ``sql`` may use.

    Args:
        memory_limit_bytes: address space of a process that runs queries, beyond what it has when it begins: the rows
            that go in, DuckDB's work, and the result. Outside the server's pool.
        duckdb_share: the part of it that DuckDB may use, so that it is DuckDB that says what it has no room for.
        deadline_seconds: for all that a rule has to do for one slice of rows, by the clock on the wall. A process
            works in one thread, so its CPU time is no more.
    """

    memory_limit_bytes: int = 256 << 20
    duckdb_share: float = 0.75
    deadline_seconds: float = 10.0


DEFAULT_LIMITS = QueryLimits()


_ADVICE = "give the rule a key, so that it runs over the keys that changed"


def refused(query: str, why: str) -> InvalidRequest:
    """The error for a query that can never be run as it is."""
    return InvalidRequest(f"the rule's query {shown(query)} cannot be run: {why}")


def too_large(query: str, limits: QueryLimits, what: str) -> OutOfBudget:
    """The error of a query whose ``what`` passes the memory limit."""
    return OutOfBudget(
        f"the rule's query {shown(query)} needs more memory than {limits.memory_limit_bytes >> 20} MiB for {what}: "
        f"{_ADVICE}, or keep less"
    )


def ended(query: str, limits: QueryLimits, code: int) -> OutOfBudget:
    """The error of a query whose process ended with this code, negative for a signal."""
    return OutOfBudget(
        f"the rule's query {shown(query)} ended its process with code {code}, most likely because it needs more memory "
        f"than {limits.memory_limit_bytes >> 20} MiB: {_ADVICE}, or make the query simpler"
    )


def too_slow(query: str, limits: QueryLimits) -> Unavailable:
    """The error of a query that was stopped at its deadline."""
    return Unavailable(
        f"the rule's query {shown(query)} did not end within {limits.deadline_seconds:g} s and was stopped: {_ADVICE}, "
        "or make the query simpler"
    )


def shown(query: str) -> str:
    """Its first line, in one line of ASCII: the message of an error is cut short otherwise."""
    lines = query.strip().splitlines() or [""]
    return ascii(lines[0][:100] + ("..." if len(lines) > 1 or len(lines[0]) > 100 else ""))


def first_line(error: Exception) -> str:
    """The text of DuckDB or Arrow, without an excerpt of the query."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ascii(lines[0][:300])[1:-1]
