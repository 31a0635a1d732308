"""Which lane a put takes.

Guarantee: a put is on one lane from its first byte to its last. The choice is made before anything of it is
sent; a put that breaks off later is not tried on the other lane, because only whoever made the attempt
knows whether there may be another one.

``auto`` takes the bulk lane where the server names a place for it, and gRPC where it names none, where nobody
answers at that place, or where whoever answers does not speak the lane: an older server, a proxy that does
not pass the upgrade. Such a place is left alone for ``DOWN_SECONDS``, and so is a server that named none.

Places
    They are the same for all datasets of a server. Who creates a dataset is told them, and can hand them to its
    tasks, which then ask nobody and need no gRPC at all. Everybody else asks once in a process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import pyarrow as pa

from flight_server.protocol import InvalidRequest, NotFound, PutCommand, Unavailable, Unsupported
from spark_client.connection import Server, TimedOut, Unreachable

from .bulk_put import BulkWriter
from .grpc_put import GrpcWriter
from .http import HttpPool, NoBulkLane
from .lane import LaneWriter
from .partition_stream import DOWN_SECONDS


def open_writing(
    server: Server, command: PutCommand, schema: pa.Schema, places: Sequence[str] | None = None
) -> LaneWriter:
    """Begin a put.

    Args:
        server: whose ``writing`` says which lanes may be used.
        command: what is put, and by whom.
        schema: of all its batches.
        places: where the server takes puts on the bulk lane, if the caller knows; it is asked otherwise.

    Raises:
        InvalidRequest: the bulk lane alone may be used, and the server has none.
        FlightShuffleError: the server's error, or that it cannot be reached.
        ValueError: an unknown lane.
    """
    lane = server.writing.lane
    if lane not in ("auto", "grpc", "bulk"):
        raise ValueError(f"lane is 'auto', 'grpc' or 'bulk', not {lane!r}")
    if lane == "grpc":
        return GrpcWriter(server, command, schema)
    failure: Unavailable | None = None
    for place in places_of(server) if places is None else places:
        pool = _pool(server, place)
        if lane == "auto" and pool.is_left_alone:
            continue
        try:
            return BulkWriter(pool, place, server, command, schema)
        except (NoBulkLane, Unreachable, TimedOut) as error:
            pool.leave_alone(DOWN_SECONDS)
            if places is None:
                _known(server).forget()
            failure = error
    if lane == "auto":
        return GrpcWriter(server, command, schema)
    if failure is not None:
        raise failure
    raise InvalidRequest(
        f"the server {server.location} names no place for puts on the bulk lane: use lane='auto'"
    )


def places_of(server: Server) -> tuple[str, ...]:
    """Where the server takes puts on the bulk lane, as it said when it was asked last.

    Raises:
        FlightShuffleError: it could not be asked.
    """
    known = _known(server)
    if not known.places and time.monotonic() >= known.until_seconds:
        # A server from before the lane has no such action.
        with contextlib.suppress(NotFound, Unsupported):
            known.places = tuple(server.action("locations").get("put_locations", ()))
        known.until_seconds = time.monotonic() + DOWN_SECONDS
    return known.places


class _Known:
    """What a server said: places, or that it has none until it is asked again."""

    def __init__(self) -> None:
        self.places: tuple[str, ...] = ()
        self.until_seconds = 0.0

    def forget(self) -> None:
        """Nobody answers there: it may have moved."""
        self.places, self.until_seconds = (), 0.0

    def close(self) -> None:
        """Nothing is open."""


def _known(server: Server) -> _Known:
    return server.attached("places of puts", _Known)


def _pool(server: Server, place: str) -> HttpPool:
    # Not the one of the streams that are read: who speaks one lane need not speak the other.
    parts = urlsplit(place)
    return server.attached(("puts", parts.scheme, parts.netloc), lambda: HttpPool(place, server))
