"""Waiting for what happens in another process, where no gate can be put."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_SECONDS = 60.0


def eventually(look: Callable[[], T], expected: T, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Return as soon as ``look`` returns what is expected; fail with the difference if it never does."""
    deadline = time.monotonic() + deadline_seconds
    while (found := look()) != expected:
        assert time.monotonic() < deadline, f"still {found!r} after {deadline_seconds} s, not {expected!r}"
        time.sleep(0.005)
