"""Small bodies of requests, read whole."""

from __future__ import annotations

import asyncio

from aiohttp import web

from flight_server.protocol import InvalidRequest

MAX_BODY_BYTES = 4096


async def small_body(request: web.Request, stall_seconds: float) -> bytes:
    """The body of a request.

    Raises:
        InvalidRequest: it has no length, is longer than ``MAX_BODY_BYTES``, or takes longer than ``stall_seconds``.
    """
    size_bytes = request.content_length
    if size_bytes is None or size_bytes > MAX_BODY_BYTES:
        raise InvalidRequest(
            f"{request.path} takes JSON of at most {MAX_BODY_BYTES} bytes, with a Content-Length"
        )
    try:
        async with asyncio.timeout(stall_seconds):
            return await request.content.readexactly(size_bytes)
    except (TimeoutError, asyncio.IncompleteReadError):
        raise InvalidRequest(f"{request.path}: the body did not come") from None
