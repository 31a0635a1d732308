"""Waiting: how much of a changelog is garbage, and why the next merge does not take it away now; for ``statistics``."""

from __future__ import annotations

from typing import Any

from flight_server.protocol import RuleName

from .holds import HeldBack


def garbage_rows(keep: dict[str, Any] | None, rows: int, keys: int) -> int | None:
    """At least so many rows are beyond what the rule keeps of each key; None where the rule gives no such number."""
    if keep is None:
        return 0
    if keep["rule"] not in (RuleName.LATEST, RuleName.TOP_K):
        return None
    return max(0, rows - int(keep.get("k") or 1) * keys)


def waits_for(
    held: HeldBack | None, *, damage: str | None, delay_seconds: float | None, fuel: bool
) -> str | None:
    """Why garbage is still there; None if nothing is in the way of the next merge.

    Args:
        held: the hold that compaction waits for.
        delay_seconds: of a changelog whose newest versions are not that old yet.
        fuel: whether a merge has begun and waits for fuel.
    """
    if damage is not None:
        return "damage on disk"
    if fuel:
        return "fuel for the merge that has begun"
    if held is not None:
        return str(held)
    return None if delay_seconds is None else f"the delay of {delay_seconds:g} s"
