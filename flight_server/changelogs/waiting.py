"""Waiting: how many rows of a changelog may be garbage, and why no merge takes them yet, for ``statistics``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from flight_server.runs import Run

from .holds import Holds
from .planning import old_rows
from .timeline import Timeline


def waiting(
    runs: Sequence[Run],
    holds: Holds,
    timeline: Timeline,
    since: int,
    *,
    merging: bool,
    fuel_rows: int,
) -> dict[str, Any]:
    """What ``statistics`` says of it.

    Args:
        since: the version up to which compaction has gone.

    Returns:
        ``garbage_rows``: at most so many rows, of those older than the delay, are not needed. ``waits_for``: what the
        next merge of them waits for: ``nothing`` (there are none), ``merge`` (one goes on), ``fuel``, ``hold``,
        ``delay`` (all rows that may be garbage are younger), or ``rows``: there are so few that it waits for more, some
        seconds at most. ``held_by``: the name of the hold that it waits for.
    """
    horizon, held = max(since, timeline.horizon(time.monotonic())), holds.oldest()
    garbage = old_rows(runs, horizon)
    said: dict[str, Any] = {"garbage_rows": garbage}
    if merging:
        return said | {"waits_for": "merge" if fuel_rows > 0 else "fuel"}
    if old_rows(runs, horizon if held is None else max(since, min(horizon, held))):
        return said | {"waits_for": "rows"}
    if garbage:
        names = (name for name, (version, _) in holds.leases().items() if version == held)
        return said | {"waits_for": "hold", "held_by": next(names, "a follower")}
    return said | {"waits_for": "delay" if any(run.last_version > horizon for run in runs) else "nothing"}
