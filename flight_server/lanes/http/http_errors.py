"""Errors as HTTP answers, also for bytes that are no HTTP request at all.

aiohttp's answer and log quote a head that it cannot parse, and a malformed ``Authorization`` header holds the token.
The connections of :class:`Runner` write their own, which quote nothing.
"""

from __future__ import annotations

import secrets

import structlog
from aiohttp import web

from flight_server.protocol import FlightShuffleError, InternalError, InvalidRequest

RETRY_AFTER_SECONDS = 1
_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}

_log = structlog.get_logger("flight_server.lanes.http.http_errors")


def status_of(error: FlightShuffleError) -> int:
    """The HTTP status of an error."""
    return _STATUS[error.status]


def refusal(error: FlightShuffleError, http: web.HTTPException | None = None) -> web.Response:
    """The answer for an error; ``http`` gives its status and ``Allow`` if aiohttp has raised one."""
    headers = {} if http is None else {name: value for name, value in http.headers.items() if name == "Allow"}
    status = status_of(error) if http is None else http.status
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    elif status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return web.Response(
        body=error.to_json().encode(), status=status, content_type="application/json", headers=headers
    )


class Runner(web.AppRunner):
    """A runner with connections of :class:`_Connection`; aiohttp has no option for that."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server
        return server


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        connection = super().__call__()
        connection.__class__ = _Connection
        return connection


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer where no handler gave one. ``message`` is not used: it may quote the client."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        error: FlightShuffleError
        if status < 500:
            kind = type(exc).__name__
            _log.warning("malformed_request", peer=request.remote, kind=kind)
            error = InvalidRequest(f"the request is not HTTP/1.1 as this server reads it ({kind})")
        else:
            error_id = secrets.token_hex(6)
            _log.error("internal_error", error_id=error_id, path=request.path, exc_info=exc)
            error = InternalError(
                f"internal error {error_id}: the server's log has the cause under this id", error_id=error_id
            )
        answer = refusal(error)
        answer.force_close()
        return answer
