"""Connections of the HTTP port: errors as answers, also for bytes that are no HTTP request at all, and what follows
when a client ends its input.

aiohttp's answer and log quote a head that it cannot parse, and a malformed ``Authorization`` header holds the token.
The connections of :class:`Runner` write their own, which quote nothing.

Ended inputs
    The end of a client's input is the end of its connection: a client that has closed its socket looks the same as one
    that reads on. It takes effect at once, while a transport that is closed waits until the peer takes what was written
    to it. The event loop's TLS does not tell of it while it has bytes to write, so :func:`disconnect_left` asks the
    kernel about the connections with TLS.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from flight_server.protocol import FlightShuffleError, InvalidRequest
from flight_server.reporting import Calls, ServedCall

RETRY_AFTER_SECONDS = 1
_TCP_CLOSE, _TCP_CLOSE_WAIT = 7, 8  # of the kernel's ``tcpi_state``, the first byte of ``tcp_info``
_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}


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

    def __init__(self, app: web.Application, calls: Calls, **options: Any) -> None:
        super().__init__(app, **options)
        self._calls = calls

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server
        assert isinstance(server, _Server)
        server.calls = self._calls
        return server


class _Server(web.Server):
    calls: Calls

    def __call__(self) -> web.RequestHandler:
        connection = super().__call__()
        connection.__class__ = _Connection
        return connection


class _Connection(web.RequestHandler):
    __slots__ = ()

    def eof_received(self) -> None:
        """See "Ended inputs"."""
        if self.transport is not None:
            self.transport.abort()

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
        server = self._manager
        assert isinstance(server, _Server)
        call = ServedCall("http", request.method, str(request.remote))
        error: Exception = RuntimeError("aiohttp gave no reason") if not isinstance(exc, Exception) else exc
        event = "call_failed"
        if status < 500:
            kind, event = type(exc).__name__, "malformed_request"
            error = InvalidRequest(f"the request is not HTTP/1.1 as this server reads it ({kind})")
        answer = refusal(server.calls.failed(call, error, event))
        answer.force_close()
        return answer


def disconnect_left(connections: Iterable[_Connection]) -> None:
    """Disconnect those, with TLS, whose client has left."""
    for connection in connections:
        transport = connection.transport
        peer: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
        if transport is None or peer is None:
            continue  # it is lost, and is told so in the event loop's next pass
        state = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state in (_TCP_CLOSE, _TCP_CLOSE_WAIT):
            transport.abort()
