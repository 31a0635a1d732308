"""The locations that this process has found gone: a stream that has a choice begins elsewhere.

So a server that is gone costs the tasks of a process one time-out, not one for each stream that would begin there.
"""

from __future__ import annotations

import time

GONE_SECONDS = 300.0
"""A server that comes back has nothing that is read here, unless only the way to it was cut."""
_until: dict[str, float] = {}


def found_gone(location: str) -> None:
    """Nothing answered there. A location is forgotten after ``GONE_SECONDS``."""
    now_seconds = time.monotonic()
    for each in [each for each, until in _until.items() if until < now_seconds]:
        _until.pop(each, None)  # another thread may have been faster
    _until[location] = now_seconds + GONE_SECONDS


def is_gone(location: str) -> bool:
    """Whether nothing answered there a short time ago."""
    return time.monotonic() < _until.get(location, 0.0)
