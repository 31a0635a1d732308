"""Servers as the readers of this process see them, by their starts.

A start does not come back. So for data of one start a refusal is an answer, and silence is none:

    answering   its readers connect
    silent      a reader has met its deadlines, or could not connect: each later one asks it first, for ``why_seconds``
    lost        its ports have refused (``connection.refuses``), or another start has answered there: for ever

A silent start that answers is answering again. A server that answers that it has no such dataset has lost only that.
"""

from __future__ import annotations

import threading
from enum import Enum


class StartState(Enum):
    """See the module."""

    ANSWERING = "answering"
    SILENT = "silent"
    LOST = "lost"


class Sign(Enum):
    """What a reader notices of a server."""

    ANSWER = "an answer"
    SILENCE = "silence"
    REFUSAL = "a refusal"


_A, _S, _L = StartState.ANSWERING, StartState.SILENT, StartState.LOST
_NEXT = {
    (_A, Sign.ANSWER): _A,
    (_A, Sign.SILENCE): _S,
    (_A, Sign.REFUSAL): _L,
    (_S, Sign.ANSWER): _A,
    (_S, Sign.SILENCE): _S,
    (_S, Sign.REFUSAL): _L,
    (_L, Sign.ANSWER): _L,
    (_L, Sign.SILENCE): _L,
    (_L, Sign.REFUSAL): _L,
}


class StartStates:
    """Thread-safe. A start of None, of data that any start may have, is always answering."""

    def __init__(self) -> None:
        self._states: dict[str, StartState] = {}
        self._lock = threading.Lock()

    def of(self, start: str | None) -> StartState:
        return _A if start is None else self._states.get(start, _A)

    def notice(self, start: str | None, sign: Sign) -> None:
        if start is None:
            return
        with self._lock:
            self._states[start] = _NEXT[self.of(start), sign]


STARTS = StartStates()
"""Those of this process."""
