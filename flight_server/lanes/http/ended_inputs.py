"""Ended inputs: connections whose client sends nothing more and still has an answer to come.

Guarantee: a client that ends its input after its request and reads on gets its whole answer, and then the end of the
connection. A client whose kernel takes no byte for so many seconds after the end of its input is disconnected, also
while the answer waits for a producer: a client that has closed its socket looks the same, and its kernel answers up to
two minutes later. One that has reset the connection is disconnected at the next look, because the event loop does not
look at an input that has ended.

TLS
    The end of the input is the end of the connection, because TLS has no other. The event loop's TLS does not tell of
    it while it has bytes to write, so each look asks the kernel about the connections that are being answered.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable
from typing import Protocol

_TCP_INFO = struct.Struct("=B119xQ")  # tcpi_state and tcpi_bytes_acked, of linux/tcp.h
_TCP_CLOSE, _TCP_CLOSE_WAIT = 7, 8


class AnsweredConnection(Protocol):
    """A connection of aiohttp's server."""

    transport: asyncio.Transport | None

    @property
    def answering(self) -> bool:
        """Whether a request has come that is not answered yet."""

    def force_close(self) -> None: ...


class EndedInputs:
    """Those of one server. The caller looks several times in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # How many bytes the peer's kernel had taken, and when that number was first seen.
        self._taken: dict[AnsweredConnection, tuple[int, float]] = {}

    def add(self, connection: AnsweredConnection) -> bool:
        """The client of a connection has ended its input; whether the connection stays open."""
        transport = connection.transport
        if transport is None or not connection.answering:
            return False
        if transport.get_extra_info("ssl_object") is not None:
            return False
        self._taken[connection] = -1, 0.0
        return True

    def look(self, secure: Iterable[AnsweredConnection]) -> None:
        """Disconnect those that are done, have left or take nothing. ``secure``: the connections with TLS."""
        for connection in secure:
            transport = connection.transport
            if transport is not None and connection.answering:
                state, _ = _tcp_info(transport)
                if state in (_TCP_CLOSE, _TCP_CLOSE_WAIT):
                    transport.abort()
        now = asyncio.get_running_loop().time()
        for connection, (before, since) in list(self._taken.items()):
            transport = connection.transport
            if transport is None or transport.is_closing() or not connection.answering:
                del self._taken[connection]
                connection.force_close()
                continue
            state, taken_bytes = _tcp_info(transport)
            if taken_bytes != before:
                self._taken[connection] = taken_bytes, now
            if state == _TCP_CLOSE or (taken_bytes == before and now - since >= self._seconds):
                transport.abort()


def _tcp_info(transport: asyncio.Transport) -> tuple[int, int]:
    """The kernel's state of the connection, and how many bytes the peer's kernel has taken."""
    peer: socket.socket = transport.get_extra_info("socket")
    state, taken_bytes = _TCP_INFO.unpack(
        peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    )
    return state, taken_bytes
