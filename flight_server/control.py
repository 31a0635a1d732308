"""Control requests: how large one may be, and that its reading is counted.

Guarantee: a request that is no message of a put is refused above a limit that the error names, before any
of it is parsed; and the memory that a large one takes while it is parsed is reserved in the account of
arrivals.

    1 MiB       descriptors, tickets, criteria, commits, and the bodies of actions that are not named here
    16 MiB      ``seal``, which may name 100,000 attempts and more
    64 MiB      ``CancelFlightInfo``, whose FlightInfo has an endpoint for each partition
    max_schema  ``create``: so much of schema, which base64 makes a third longer, and 1 MiB for the rest

What is not counted: gRPC buffers a request whole before the server sees it, and has one limit on messages
for all methods. So each call on the gRPC lane may hold one message of ``max_message`` for as long as the
client takes to send it, as each put does; a larger one is refused by gRPC itself while it arrives. HTTP
requests other than a put have no body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .budget import reserve
from .core import Core
from .errors import InvalidRequest

MAX_CONTROL_BYTES = 1 << 20
MAX_SEAL_BYTES = 16 << 20
MAX_FLIGHT_INFO_BYTES = 64 << 20
SMALL_BYTES = 64 << 10
PARSED_COST = 8
"""What Python's objects take for each byte of JSON, seen with a ``seal`` of 100,000 attempts."""


def check_size(size_bytes: int, what: str, limit_bytes: int = MAX_CONTROL_BYTES) -> None:
    """Nothing while the request may be that large.

    Raises:
        InvalidRequest: it may not.
    """
    if size_bytes > limit_bytes:
        raise InvalidRequest(
            f"{what} has {size_bytes} bytes, more than the limit of {limit_bytes}; send less in one request",
            limit_bytes=limit_bytes,
        )


def action_limit_bytes(core: Core, action: str) -> int:
    """How large the body of this action may be."""
    if action == "create":
        return MAX_CONTROL_BYTES + core.max_schema_bytes * 4 // 3
    return {"seal": MAX_SEAL_BYTES, "CancelFlightInfo": MAX_FLIGHT_INFO_BYTES}.get(action, MAX_CONTROL_BYTES)


@asynccontextmanager
async def counted(core: Core, size_bytes: int, peer: str) -> AsyncIterator[None]:
    """Room for what the block makes of a request of that size; none is needed for a small one.

    Raises:
        OutOfBudget: there was none until the deadline.
    """
    if size_bytes <= SMALL_BYTES:
        yield
        return
    room = await reserve(
        core.budget.arrivals,
        size_bytes * PARSED_COST,
        core.waits,
        peer=peer,
        deadline_seconds=core.settings.budget_deadline_seconds,
    )
    try:
        yield
    finally:
        room.free()
