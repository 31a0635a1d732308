"""gRPC's health service, beside Arrow Flight on the same port: healthy from the server's start until it drains.

    HealthCheckRequest    1 service
    HealthCheckResponse   1 status (varint)

(Field numbers and statuses: ``health.proto`` of gRPC.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from flight_server.concurrency import Changes
from flight_server.protocol import InvalidRequest, Unavailable, wire

from .pending_reads import PendingReads

HEALTH = "grpc.health.v1.Health"
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = (wire.varint_field(1, status) for status in (1, 2, 3))


class Health:
    """The health of a server that offers ``service``."""

    def __init__(self, service: str, pending: PendingReads) -> None:
        self._services = ("", service)
        self._pending = pending
        self._status = _SERVING
        self._changes = Changes()

    def offer(self, server: Any) -> None:
        """Have the gRPC server take the calls."""
        # Each streams its requests, so that they are read here, as Flight's.
        calls = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, calls),))

    def drain(self) -> None:
        """The server is not healthy from now on. Twice is fine."""
        self._status = _NOT_SERVING
        self._changes.tell()

    async def _check(self, _: AsyncIterator[bytes], context: Any) -> bytes:
        if await self._service(context) not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return self._status

    async def _watch(self, _: AsyncIterator[bytes], context: Any) -> None:
        known = await self._service(context) in self._services
        sent: bytes | None = None
        while True:
            status = self._status if known else _SERVICE_UNKNOWN
            if status != sent:
                await context.write(status)
                sent = status
            else:
                await self._changes.next()

    async def _service(self, context: Any) -> str:
        """The service that a call asks for; "" is the server as a whole."""
        try:
            request = await self._pending.request(context)
            return wire.bytes_field(request or b"", 1, "HealthCheckRequest").decode()
        except Unavailable as late:
            refusal = grpc.StatusCode.UNAVAILABLE, late.message
        except (InvalidRequest, UnicodeDecodeError):
            refusal = grpc.StatusCode.INVALID_ARGUMENT, "the request is not this call's message"
        # Outside the except clauses, so that the exception has no context.
        return str(await context.abort(*refusal))
