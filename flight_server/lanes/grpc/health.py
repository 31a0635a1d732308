"""gRPC's health service, beside Arrow Flight on the same port: healthy from the server's start until it drains.

Its library, 3 MiB and some 20 ms, is imported for the first call, in a thread. So a request is bytes when it comes, and
is parsed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from types import ModuleType
from typing import Any

import grpc

from flight_server.protocol import InvalidRequest, Unavailable, wire

from .pending_reads import PendingReads

HEALTH = "grpc.health.v1.Health"


class Health:
    """The health of a server that offers ``service``."""

    def __init__(self, service: str, pending: PendingReads) -> None:
        self._service = service
        self._pending = pending
        self._loading: asyncio.Future[tuple[Any, ModuleType]] | None = None
        self._servicer: Any = None
        self._draining = False

    def offer(self, server: Any) -> None:
        """Have the gRPC server take the calls."""
        # Each streams its requests, so that they are read here, as Flight's.
        one, many = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        calls = {
            "Check": one(partial(self._checked, "Check"), None, _serialized),
            "Watch": many(partial(self._checked, "Watch"), None, _serialized),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, calls),))

    async def drain(self) -> None:
        """The server is not healthy from now on. Twice is fine."""
        self._draining = True
        if self._servicer is not None:
            await self._servicer.enter_graceful_shutdown()

    async def _checked(self, call: str, _: AsyncIterator[bytes], context: Any) -> Any:
        try:
            request = await self._pending.request(context)
            service = wire.bytes_field(request or b"", 1, "HealthCheckRequest").decode()
        except Unavailable as late:
            refusal = grpc.StatusCode.UNAVAILABLE, late.message
        except (InvalidRequest, UnicodeDecodeError):
            refusal = grpc.StatusCode.INVALID_ARGUMENT, "the request is not this call's message"
        else:
            servicer, messages = await self._loaded()
            return await getattr(servicer, call)(messages.HealthCheckRequest(service=service), context)
        # Outside the except clauses, so that the exception has no context.
        return await context.abort(*refusal)

    async def _loaded(self) -> tuple[Any, ModuleType]:
        loading = self._loading
        if loading is None or (
            loading.done() and loading.exception() is not None
        ):  # then a later call tries again
            self._loading = loading = asyncio.ensure_future(self._load())
        return await asyncio.shield(loading)  # the call that came first may be given up

    async def _load(self) -> tuple[Any, ModuleType]:
        library, messages = await asyncio.to_thread(_imported)
        servicer = library.aio.HealthServicer()
        for name in ("", self._service):
            await servicer.set(name, messages.HealthCheckResponse.SERVING)
        self._servicer = servicer
        if self._draining:
            await servicer.enter_graceful_shutdown()
        return servicer, messages


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _imported() -> tuple[ModuleType, ModuleType]:
    from grpc_health.v1 import health, health_pb2  # noqa: PLC0415  # see above

    return health, health_pb2
