"""How many examples a property is tried with: a share of those of the profile of hypothesis (``tests.conftest``)."""

from __future__ import annotations

from hypothesis import settings


def examples(share: float) -> int:
    """``max_examples`` for a property whose example costs more (or less) than most; 3 at least."""
    profile = settings.default
    assert profile is not None
    return max(3, round(share * profile.max_examples))
