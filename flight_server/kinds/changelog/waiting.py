"""Waiting: how many rows of a changelog may be garbage, and why no merge takes them yet, for ``statistics``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .holds import HeldBack
from .planning import old_rows
from .runs import Run


def waiting(
    runs: Sequence[Run], horizon: int, since: int, held: HeldBack | None, *, merging: bool, fuel_rows: int
) -> dict[str, Any]:
    """Its part of ``statistics``.

    Args:
        horizon: the version up to which compaction would go without holds.
        since: that up to which it may go now.
        held: the hold that compaction waits for.

    Returns:
        ``garbage_rows``: at most so many rows, of those older than the delay, are not needed. ``waits_for``: why the
        next merge of them waits: ``nothing`` (there are none), ``merge`` (one goes on), ``fuel``, ``delay`` (all
        rows that may be garbage are younger), ``rows`` (there are so few that it waits for more, some seconds at most),
        or the hold and its owner.
    """
    garbage, free = old_rows(runs, horizon), old_rows(runs, since)
    if merging:
        waits_for = "merge" if fuel_rows > 0 else "fuel"
    elif held is not None and garbage > free:
        waits_for = str(held)
    elif free:
        waits_for = "rows"
    else:
        waits_for = "delay" if any(run.last_version > horizon for run in runs) else "nothing"
    return {"garbage_rows": garbage, "waits_for": waits_for}
