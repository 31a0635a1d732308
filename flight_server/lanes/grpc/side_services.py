"""The services beside Arrow Flight on the gRPC port: health and reflection.

Their libraries, 3 MiB and some 20 ms, are imported for the first call, in a thread. So the messages of a call are bytes
when they come, and are parsed here.

Health
    The server is healthy from its start until it drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from flight_server.protocol import Unavailable

from .pending_reads import PendingReads

if TYPE_CHECKING:
    from .side_libraries import SideLibraries

HEALTH = "grpc.health.v1.Health"
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class SideServices:
    """Health and reflection of a server that offers ``service``."""

    def __init__(self, service: str, pending: PendingReads) -> None:
        self._service = service
        self._pending = pending
        self._loading: asyncio.Future[SideLibraries] | None = None
        self._libraries: SideLibraries | None = None
        self._draining = False

    def offer(self, server: Any) -> None:
        """Have the gRPC server take the calls."""
        # Each streams its requests, so that they are read here, as Flight's.
        one, many = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        calls = {
            "Check": one(partial(self._asked, "Check"), None, _serialized),
            "Watch": many(partial(self._asked, "Watch"), None, _serialized),
        }
        described = many(self._described, None, _serialized)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, calls),))
        for name in REFLECTION:
            handler = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": described})
            server.add_generic_rpc_handlers((handler,))

    async def drain(self) -> None:
        """The server is not healthy from now on. Twice is fine."""
        self._draining = True
        if self._libraries is not None:
            await self._libraries.health.enter_graceful_shutdown()

    async def _asked(self, call: str, _: AsyncIterator[bytes], context: Any) -> Any:
        request = await self._next(context)
        libraries = await self._loaded()
        parsed = await _parsed(libraries, libraries.health_request, request or b"", context)
        return await getattr(libraries.health, call)(parsed, context)

    async def _described(self, _: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        libraries = await self._loaded()

        async def requests() -> AsyncIterator[Any]:
            while (request := await self._next(context)) is not None:
                yield await _parsed(libraries, libraries.reflection_request, request, context)

        async for answer in libraries.reflection.ServerReflectionInfo(requests(), context):
            yield answer

    async def _next(self, context: Any) -> bytes | None:
        """The next request; None if the client has ended them."""
        try:
            return await self._pending.request(context)
        except Unavailable as error:
            message = error.message
        await context.abort(grpc.StatusCode.UNAVAILABLE, message)
        raise AssertionError("abort raises")

    async def _loaded(self) -> SideLibraries:
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        return await asyncio.shield(self._loading)  # the call that came first may be given up

    async def _load(self) -> SideLibraries:
        libraries = await asyncio.to_thread(_imported, (self._service, HEALTH, *REFLECTION))
        await libraries.serve(self._service)
        self._libraries = libraries
        if self._draining:
            await libraries.health.enter_graceful_shutdown()
        return libraries


async def _parsed(
    libraries: SideLibraries, parse: Callable[[bytes], Any], request: bytes, context: Any
) -> Any:
    try:
        return parse(request)
    except libraries.unreadable:
        pass
    # Outside the except clause, so that the exception has no context.
    return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not this call's message")


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _imported(services: Sequence[str]) -> SideLibraries:
    from .side_libraries import SideLibraries  # noqa: PLC0415  # see above

    return SideLibraries(services)
