"""Calls that are made again while their server is away for a moment: it restarts, or a connection broke.

Guarantee: a call is made again after a pause, as often as ``Timeouts.tries`` says, and not begun again later than
``within_seconds`` after its first failure; then its last error is raised.

Callers repeat only calls that are fine twice: the server may have done the work whose answer was lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from flight_server.protocol import Draining, FlightShuffleError

from .calls import Unreachable
from .stream_options import Timeouts

T = TypeVar("T")

AWAY = (Unreachable, Draining)
"""The errors of calls to a server that restarts."""


def retrying(
    timeouts: Timeouts,
    call: Callable[[], T],
    errors: tuple[type[FlightShuffleError], ...] = AWAY,
    within_seconds: float = float("inf"),
    again: Callable[[], bool] = lambda: True,
) -> T:
    """The result of ``call``, which is made again while it raises one of ``errors`` and ``again`` allows it. Any other
    error is raised at once. Blocks; cannot be cancelled.
    """
    until, failures = float("inf"), 0
    while True:
        try:
            return call()
        except errors:
            failures += 1
            until = min(until, time.monotonic() + within_seconds)
            pause_seconds = timeouts.pause_seconds(failures)
            if failures > timeouts.tries or time.monotonic() + pause_seconds > until or not again():
                raise
        time.sleep(pause_seconds)
