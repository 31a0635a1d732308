"""Making: a changelog that is not yet on disk."""

from __future__ import annotations

import time
from pathlib import Path

from flight_server.memory import MemoryPool, Metadata
from flight_server.protocol import CreateRequest

from .changelog import DEFAULT_DELAY_SECONDS, Changelog, Hooks
from .journal import StateRecord
from .rules import Query, QueryProcesses, make_rule
from .runs import Layout


def new_changelog(
    request: CreateRequest,
    generation: str,
    layout: Layout,
    directory: Path,
    *,
    disk: MemoryPool,
    metadata: Metadata,
    max_lag_seconds: float,
    hooks: Hooks,
    queries: QueryProcesses,
) -> Changelog:
    """The changelog that a request declares. Blocks, if its rule is a query, until that was tried.

    Raises InvalidRequest if its rule does not fit its schema, and as :meth:`Query.check`.
    """
    assert request.schema is not None
    state = StateRecord(
        request.dataset,
        generation,
        request.schema,
        None if request.keep is None else request.keep.to_json(),
        DEFAULT_DELAY_SECONDS if request.delay_seconds is None else request.delay_seconds,
        request.lease_seconds,
        covered_time=time.time(),
    )
    rule = make_rule(request.keep, layout.schema, queries)
    if isinstance(rule, Query):
        rule.check()
    return Changelog(
        state,
        layout,
        rule,
        directory,
        disk=disk,
        metadata=metadata,
        max_lag_seconds=max_lag_seconds,
        hooks=hooks,
    )
