"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """To be called, or in the place of the module ``time``."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    monotonic = time = __call__
