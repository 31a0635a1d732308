"""How many examples a property is tried with: half of them in every run, all in a long one.

Every run of the suite makes the same examples (``tests/conftest.py``): they find what a change has broken, and nothing
else. ``make examples`` makes new ones.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

EXPLORING = "exploring"
"""The profile that makes new examples."""


def examples(count: int, **more: Any) -> settings:
    """The settings of a property: ``make examples`` tries it with ``count`` examples, the suite with half as many."""
    exploring = settings.get_current_profile_name() == EXPLORING
    return settings(max_examples=count if exploring else max(1, count // 2), **more)
