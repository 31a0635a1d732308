"""Connections of the HTTP port: errors as answers, also for bytes that are no HTTP request at all, and what follows
when a client ends its input.

aiohttp's answer and log quote a head that it cannot parse, and a malformed ``Authorization`` header holds the token.
The connections of :class:`Runner` write their own, which quote nothing. aiohttp would also close a connection at the
end of its input.

Ended inputs
    A client that ends its input after its request and reads on gets its whole answer, and then the end of the
    connection. A client whose kernel takes no byte for so many seconds after the end of its input is disconnected, also
    while the answer waits for a producer: a client that has closed its socket looks the same, and its kernel answers up
    to two minutes later. One that has reset the connection is disconnected at the next look, because the event loop
    does not look at an input that has ended.

    A drain waits for such a client while bytes are on their way to it, and while its answer goes on. Once it has been
    sent nothing for ``DRAINED_SECONDS``, as while its answer waits for a producer, it is disconnected.

TLS
    The end of the input is the end of the connection, because TLS has no other. The event loop's TLS does not tell of
    it while it has bytes to write, so each look asks the kernel about the connections that are being answered.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from flight_server.protocol import FlightShuffleError, InvalidRequest
from flight_server.reporting import Calls, ServedCall

RETRY_AFTER_SECONDS = 1
DRAINED_SECONDS = 0.25
_TCP_INFO = struct.Struct("=B119xQ")  # tcpi_state and tcpi_bytes_acked, of linux/tcp.h
_TCP_CLOSE, _TCP_CLOSE_WAIT = 7, 8
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

    def __init__(self, app: web.Application, calls: Calls, ended_inputs: EndedInputs, **options: Any) -> None:
        super().__init__(app, **options)
        self._calls = calls
        self._ended_inputs = ended_inputs

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server
        assert isinstance(server, _Server)
        server.calls = self._calls
        server.ended_inputs = self._ended_inputs
        return server


class _Server(web.Server):
    calls: Calls
    ended_inputs: EndedInputs

    def __call__(self) -> web.RequestHandler:
        connection = super().__call__()
        connection.__class__ = _Connection
        return connection


class _Connection(web.RequestHandler):
    __slots__ = ()

    @property
    def answering(self) -> bool:
        """Whether requests have come whole that are not answered yet, or the first may have."""
        request = self._current_request
        if request is not None:
            return request.content.is_eof()
        # aiohttp's loop takes a request some steps before it is the current one, and has a waiter while it has none.
        return self._waiter is None or self._waiter.done()

    def eof_received(self) -> bool:  # type: ignore[override] # aiohttp's closes the connection
        """Keep the connection for the answers to come ("Ended inputs"), and close it after the last one."""
        server = self._manager
        if not isinstance(server, _Server) or not server.ended_inputs.add(self):
            return False
        if not self._messages:
            self.close()
        return True

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


class EndedInputs:
    """Those of one server. The caller looks several times in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._draining = False
        # How many bytes the peer's kernel had taken, and when that number was first seen.
        self._progress: dict[_Connection, tuple[int, float]] = {}

    def add(self, connection: _Connection) -> bool:
        """The client of a connection has ended its input; whether the connection stays open."""
        transport = connection.transport
        if transport is None or not connection.answering:
            return False
        if transport.get_extra_info("ssl_object") is not None:
            return False
        self._progress[connection] = -1, 0.0
        return True

    def drain(self) -> None:
        """The server drains from now on."""
        self._draining = True
        self.look(())

    def look(self, secure: Iterable[_Connection]) -> None:
        """Disconnect those that are done, have left or take nothing. ``secure``: the connections with TLS."""
        for connection in secure:
            transport = connection.transport
            if transport is not None and connection.answering:
                state, _ = _tcp_info(transport)
                if state in (_TCP_CLOSE, _TCP_CLOSE_WAIT):
                    transport.abort()
        now = asyncio.get_running_loop().time()
        for connection, (before, since) in list(self._progress.items()):
            transport = connection.transport
            if transport is None or transport.is_closing() or not connection.answering:
                del self._progress[connection]
                connection.force_close()
                continue
            state, taken_bytes = _tcp_info(transport)
            if taken_bytes != before:
                self._progress[connection] = taken_bytes, now
            seconds = DRAINED_SECONDS if self._draining and _has_sent_all(transport) else self._seconds
            if state == _TCP_CLOSE or (taken_bytes == before and now - since >= seconds):
                transport.abort()


def _tcp_info(transport: asyncio.Transport) -> tuple[int, int]:
    """The kernel's state of the connection, and how many bytes the peer's kernel has taken."""
    peer: socket.socket = transport.get_extra_info("socket")
    state, taken_bytes = _TCP_INFO.unpack(
        peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    )
    return state, taken_bytes


def _has_sent_all(transport: asyncio.Transport) -> bool:
    """Whether the peer's kernel has taken all that was written."""
    unsent = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    return not (transport.get_write_buffer_size() or any(unsent))
