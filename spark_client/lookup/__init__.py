"""Lookups against changelogs: per host one mapped snapshot with an index, which deltas keep current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lookups import Lookups


def __getattr__(name: str) -> Any:
    if name != "Lookups":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # When it is asked for: tasks, which import other modules of this room, would load for it what only drivers need.
    from .lookups import Lookups  # noqa: PLC0415 - as said above

    return Lookups
