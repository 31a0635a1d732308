"""Servers as the readers of this process see them, by their starts.

A start does not come back. So for data of one start a refusal is an answer, and silence is none. A silent start that
answers is answering again. A server that answers that it has no such dataset has lost only that.
"""

from __future__ import annotations

import threading
from enum import Enum


class StartState(Enum):
    """What readers have noticed of a start."""

    ANSWERING = "its readers connect"
    SILENT = "a reader has met its deadlines, or could not connect: each later one asks it first, for `why_seconds`"
    LOST = "its ports have refused (`connection.refuses`), or another start has answered there: for ever"


class StartStates:
    """Thread-safe. A start of None, of data that any start may have, is always answering."""

    def __init__(self) -> None:
        self._states: dict[str, StartState] = {}
        self._lock = threading.Lock()

    def of(self, start: str | None) -> StartState:
        return StartState.ANSWERING if start is None else self._states.get(start, StartState.ANSWERING)

    def notice(self, start: str | None, state: StartState) -> None:
        with self._lock:
            if start is not None and self.of(start) is not StartState.LOST:
                self._states[start] = state


STARTS = StartStates()
"""Those of this process."""
