"""JSON of small requests, and answers in JSON."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from flight_server.protocol import InvalidRequest, ReaderTooSlow, dump_json
from flight_server.tiering import Reader
from flight_server.transfer import AnswerRoom, MadeAnswer

MAX_BODY_BYTES = 4096


async def small_body(request: web.Request, stall_seconds: float) -> bytes:
    """The body of a request. Raises InvalidRequest: it has no length, is longer than ``MAX_BODY_BYTES``, or takes
    longer than ``stall_seconds``.
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


def peer_of(request: web.Request) -> str:
    """The client's address, as gRPC writes it."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not name:
        return "unknown"
    return f"ipv6:[{name[0]}]:{name[1]}" if ":" in name[0] else f"ipv4:{name[0]}:{name[1]}"


def json_answer(body: dict[str, Any], status: int = 200) -> web.Response:
    """A small answer."""
    return _of(dump_json(body), status)


async def send_report(room: AnswerRoom, request: web.Request, answer: MadeAnswer) -> web.StreamResponse:
    """Make an answer when there is room for it, which a large one keeps until the client has taken it.

    Raises:
        OutOfBudget: see :meth:`AnswerRoom.room`.
        ConnectionError: the client has left, or has taken nothing while others waited.
    """
    reader = Reader("", 0, peer_of(request))
    data, held = await room.made(answer, reader)
    response = _of(data)
    del data
    if held is None:
        return response

    async def write(_: bytes) -> None:
        await response.prepare(request)
        await response.write_eof()

    try:
        await room.delivery.deliver(write, b"", reader, room=held)
    except ReaderTooSlow:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client takes nothing of its answer") from None
    return response


def _of(data: bytes, status: int = 200) -> web.Response:
    return web.Response(
        body=data,
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
