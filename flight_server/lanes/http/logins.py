"""Logins: the dashboard's session, in a cookie.

    POST /login   {"token": "…"}    checks the token and sets the cookie
    POST /logout                    ends the session and takes the cookie away

The cookie is ``HttpOnly`` (no script reads it), ``SameSite=Strict``, for the whole path and, with TLS, ``Secure`` under
a ``__Host-`` name. Its name has the server's port, because browsers send a host's cookies to all of its ports. It
counts where a request has no credentials of its own, for GET and HEAD; for other methods only beside an ``Origin``,
which ``access.browsers`` has compared with the host.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from aiohttp import web

from flight_server.access import AUTHORIZATION, Authenticator
from flight_server.protocol import Body as JsonBody
from flight_server.protocol import InvalidRequest, Text, parse_json

from .json_answers import small_body

LOGIN_PATH, LOGOUT_PATH = "/login", "/logout"
SESSION_SECONDS = 12 * 3600
SESSIONS_OF_A_TOKEN = 16
_ID_BYTES = 32
_SAFE = frozenset({"GET", "HEAD"})


class _Session(NamedTuple):
    token: str
    ends_at: float


class BrowserSessions:
    """What the cookies stand for, because a page cannot send a token with each request: those of one server, oldest
    first; in RAM only.

    Guarantee: a session is only a name for the token that it was opened with. Each request is checked with that token
    as if it carried it, so a session ends with its token, at the latest after ``SESSION_SECONDS``, when it is closed,
    or when the server ends. One token has at most ``SESSIONS_OF_A_TOKEN``; one more closes its oldest, and none of
    another token's.
    """

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
        session_id = secrets.token_urlsafe(_ID_BYTES)
        self._open[_key(session_id)] = _Session(token, now + SESSION_SECONDS)
        return session_id

    def token(self, session_id: str) -> str | None:
        """The token that a session stands for; None if it has ended or never was."""
        session = self._open.get(_key(session_id))
        return None if session is None or session.ends_at <= self._clock() else session.token

    def close(self, session_id: str) -> None:
        """End a session. Twice is fine."""
        self._open.pop(_key(session_id), None)


def _key(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True)
class _Login(JsonBody, what=LOGIN_PATH):
    token: Text = None


class Logins:
    """Those of one server."""

    def __init__(self, authenticator: Authenticator, stall_seconds: float) -> None:
        self._authenticator = authenticator
        self._stall_seconds = stall_seconds
        self._sessions = BrowserSessions()
        self._cookie = ""
        self._secure = False

    def listen_at(self, port: int, *, secure: bool) -> None:
        """The port that the cookie belongs to. ``secure``: the server has TLS."""
        self._cookie = f"{'__Host-' if secure else ''}flight-shuffle-{port}"
        self._secure = secure

    def authorization(self, request: web.Request) -> str | None:
        """The header ``authorization`` of a request, or what its cookie stands for."""
        credentials = request.headers.get(AUTHORIZATION)
        session_id = request.cookies.get(self._cookie)
        if (
            credentials
            or session_id is None
            or (request.method not in _SAFE and "Origin" not in request.headers)
        ):
            return credentials
        token = self._sessions.token(session_id)
        return None if token is None else f"Bearer {token}"

    async def log_in(self, request: web.Request, _: object) -> web.Response:
        """Raises Unauthenticated: a wrong token; InvalidRequest: the server wants none, or the body is not as above."""
        if not self._authenticator.wants_token:
            raise InvalidRequest("this server wants no token")
        if request.content_type != "application/json":
            raise InvalidRequest(f"{LOGIN_PATH} takes JSON: the content type is application/json")
        body = await small_body(request, self._stall_seconds)
        token = (_Login.of(parse_json(body, LOGIN_PATH)).token or "").strip()  # one spelling for each
        self._authenticator.principal(f"Bearer {token}")
        answer = web.json_response({"seconds": SESSION_SECONDS}, headers={"Cache-Control": "no-store"})
        answer.set_cookie(
            self._cookie,
            self._sessions.open(token),
            max_age=SESSION_SECONDS,
            path="/",
            httponly=True,
            secure=self._secure,
            samesite="Strict",
        )
        return answer

    async def log_out(self, request: web.Request, _: object) -> web.Response:
        """End the session of the request's cookie, if it has one."""
        self._sessions.close(request.cookies.get(self._cookie, ""))
        answer = web.json_response({}, headers={"Cache-Control": "no-store"})
        answer.del_cookie(self._cookie, path="/", secure=self._secure, httponly=True, samesite="Strict")
        return answer
