"""Headers of an answer, which go out before its first message, and whole.

grpc.aio knows that the headers were sent once the operation that sends them has succeeded. If that is cut off, by a
deadline of ours, it sends them again with the status, which gRPC refuses: the client gets no status, and waits until
its own deadline, if it has one. So the headers are an operation of their own, which no cancellation ends: it waits for
nothing that the peer has to take, and it ends with the call. A short answer goes with them, in half of the time; it
waits for a peer that lets nothing more into its connection, and then only the end of the call ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flight_server.concurrency import to_its_end

SHORT_BYTES = 1 << 10

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types


async def send_headers(context: Context, headers: Sequence[tuple[str, str]] = ()) -> None:
    """Send the headers. A cancellation comes after it."""
    await to_its_end(context.send_initial_metadata(tuple(headers)))


async def send_answer(context: Context, message: bytes) -> None:
    """Send the headers and the only message, of at most ``SHORT_BYTES``. A cancellation comes after it."""
    await to_its_end(context.write(message))
