"""Limits of control requests: all requests that are not messages of a put.

Guarantee: a request above its limit is refused before any of it is parsed. The memory in which an action's body, or a
ticket, of more than ``SMALL_BYTES`` is parsed (``strict_json.parsed_bytes``) is reserved in the account of arrivals. A
JSON body that would take more than that account and ``MAX_PARSED_BYTES`` is refused.

    1 MiB       descriptors, tickets, criteria, commits, and the bodies of other actions
    16 MiB      ``seal``, which may name 100,000 attempts and more
    64 MiB      ``CancelFlightInfo``, whose FlightInfo has an endpoint for each partition; less where gRPC takes less
    max_schema  ``create``: a schema of that size, a third longer in base64, and 1 MiB for the rest

gRPC buffers a request whole before the server sees it, under one limit for all methods (``message_limit_bytes``);
``arriving`` counts what has come of it. HTTP requests other than a put have no body, or one of at most 4 KiB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flight_server.protocol import ACTIONS, MAX_SMALL_PARSED_BYTES, InvalidRequest, parsed_bytes
from flight_server.tiering import Admission

MAX_CONTROL_BYTES = 1 << 20
MAX_SEAL_BYTES = 16 << 20
MAX_FLIGHT_INFO_BYTES = 64 << 20
SMALL_BYTES = 64 << 10
PROTOBUF_COST = 3
"""Times the body of Arrow's own actions: the request and copies of its parts. No objects are made of a FlightInfo."""
_PROTOBUF = frozenset({"CancelFlightInfo", "RenewFlightEndpoint"})
_MIN_SLACK_BYTES, _MAX_SLACK_BYTES = 4 << 20, 64 << 20
MAX_PARSED_BYTES = 48 << 20
"""One request may take so much where 1/8 of the memory limit is less: a ``seal`` of 100,000 attempts takes 43 MiB."""


def check_size(size_bytes: int, what: str, limit_bytes: int = MAX_CONTROL_BYTES) -> None:
    """Raise InvalidRequest if a request is larger than ``limit_bytes``."""
    if size_bytes > limit_bytes:
        raise InvalidRequest(
            f"{what} has {size_bytes} bytes, more than the limit of {limit_bytes}; send less in one request",
            limit_bytes=limit_bytes,
        )


def action_limit_bytes(action: str, max_schema_bytes: int) -> int:
    """The limit of the body of this action."""
    if action == "create":
        return MAX_CONTROL_BYTES + max_schema_bytes * 4 // 3
    return {"seal": MAX_SEAL_BYTES, "CancelFlightInfo": MAX_FLIGHT_INFO_BYTES}.get(action, MAX_CONTROL_BYTES)


def message_limit_bytes(max_message_bytes: int, max_schema_bytes: int) -> int:
    """The limit that gRPC itself has for a message.

    It lies somewhat above the largest message of a put, ``seal`` and ``create``: a message that is a little too large
    gets this server's error, which says what to do. gRPC refuses a larger one by its length, with RESOURCE_EXHAUSTED
    and its limit.
    """
    largest_bytes = max(max_message_bytes, MAX_SEAL_BYTES, action_limit_bytes("create", max_schema_bytes))
    return largest_bytes + min(_MAX_SLACK_BYTES, max(_MIN_SLACK_BYTES, largest_bytes // 4))


@asynccontextmanager
async def counted(admission: Admission, action: str, body: bytes, peer: str) -> AsyncIterator[None]:
    """Hold room for the objects that the block makes of an action's body, or a DoGet's ticket; a small one needs none.
    Raises InvalidRequest: it would take more than one request may; OutOfBudget: there was no room until the deadline.
    """
    if len(body) <= SMALL_BYTES:
        yield
        return
    needed_bytes = len(body) * PROTOBUF_COST if action in _PROTOBUF else parsed_bytes(body)
    if action not in ACTIONS:  # a DoGet, whose ticket is refused before it is parsed if it would take more
        needed_bytes = min(needed_bytes, MAX_SMALL_PARSED_BYTES)
    limit_bytes = max(MAX_PARSED_BYTES, admission.max_arrival_bytes)
    if needed_bytes > limit_bytes and action not in _PROTOBUF:
        raise InvalidRequest(
            f"the action {action!r} would take {needed_bytes} bytes when it is parsed, more than the limit of "
            f"{limit_bytes}; send less in one request, or raise --memory-limit",
            limit_bytes=limit_bytes,
        )
    del body
    room = await admission.arrival(needed_bytes, peer=peer)
    try:
        yield
    finally:
        room.free()
