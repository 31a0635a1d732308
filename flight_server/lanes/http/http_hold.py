"""The body of ``POST /v1/hold``, which is that of the action ``hold``. The page ends holds with it."""

from __future__ import annotations

import asyncio

from aiohttp import web

from flight_server.kinds import Action
from flight_server.protocol import InvalidRequest

HOLD_PATH = "/v1/hold"
MAX_BODY_BYTES = 4096


async def answer_hold(request: web.Request, action: Action, stall_seconds: float) -> dict[str, object]:
    """The answer of the action. Raises InvalidRequest: the body has no length, is longer than ``MAX_BODY_BYTES``, or
    takes longer than ``stall_seconds``; or as the action, like its other errors.
    """
    size_bytes = request.content_length
    if size_bytes is None or size_bytes > MAX_BODY_BYTES:
        raise InvalidRequest(
            f"{HOLD_PATH} takes JSON of at most {MAX_BODY_BYTES} bytes, with a Content-Length"
        )
    try:
        async with asyncio.timeout(stall_seconds):
            body = await request.content.readexactly(size_bytes)
    except (TimeoutError, asyncio.IncompleteReadError):
        raise InvalidRequest(f"{HOLD_PATH}: the body did not come") from None
    return await action(body)
