"""BrowserSessions: what a browser's cookie stands for, because a page cannot send a token with each request.

Guarantee: a session is only a name for the token that it was opened with. Each request is checked with that token as if
it carried it, so a session ends with its token, at the latest after ``SESSION_SECONDS``, when it is closed, or when the
server ends. One token has at most ``SESSIONS_OF_A_TOKEN``; one more closes its oldest, and none of another token's.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

SESSION_SECONDS = 12 * 3600
SESSIONS_OF_A_TOKEN = 16
_ID_BYTES = 32


class _Session(NamedTuple):
    token: str
    ends_at: float


class BrowserSessions:
    """Those of one server, oldest first; in RAM only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By the hash of the id: how long a look takes says nothing about an id.
        self._open: dict[bytes, _Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, token: str) -> str:
        """The id of a new session. The caller has checked the token."""
        now = self._clock()
        for key, session in list(self._open.items()):
            if session.ends_at <= now:
                del self._open[key]
        same = [key for key, session in self._open.items() if session.token == token]
        for key in same[: max(0, len(same) + 1 - SESSIONS_OF_A_TOKEN)]:
            del self._open[key]
        found = secrets.token_urlsafe(_ID_BYTES)
        self._open[_key(found)] = _Session(token, now + SESSION_SECONDS)
        return found

    def token(self, session_id: str) -> str | None:
        """The token that a session stands for; None if it has ended or never was."""
        session = self._open.get(_key(session_id))
        return None if session is None or session.ends_at <= self._clock() else session.token

    def close(self, session_id: str) -> None:
        """End a session. Twice is fine."""
        self._open.pop(_key(session_id), None)


def _key(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).digest()
