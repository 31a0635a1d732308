"""Logins: the dashboard's session, in a cookie.

    POST /login   {"token": "…"}    checks the token and sets the cookie
    POST /logout                    ends the session and takes the cookie away

The cookie is ``HttpOnly`` (no script reads it), ``SameSite=Strict``, for the whole path and, with TLS, ``Secure`` under
a ``__Host-`` name. Its name has the server's port, because browsers send a host's cookies to all of its ports. It
counts where a request has no credentials of its own, for GET and HEAD; for other methods only beside an ``Origin``,
which ``access.browsers`` has compared with the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from flight_server.access import AUTHORIZATION, SESSION_SECONDS, Authenticator, BrowserSessions
from flight_server.protocol import Body as JsonBody
from flight_server.protocol import InvalidRequest, Text, parse_json

from .request_bodies import small_body

LOGIN_PATH, LOGOUT_PATH = "/login", "/logout"
_SAFE = frozenset({"GET", "HEAD"})


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
        given = request.headers.get(AUTHORIZATION)
        session_id = request.cookies.get(self._cookie)
        if given or session_id is None or (request.method not in _SAFE and "Origin" not in request.headers):
            return given
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
