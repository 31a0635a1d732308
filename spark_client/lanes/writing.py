"""The choice of a put's lane.

Guarantee: the lane is chosen before any of the put is sent; until then a server that is away for a moment is asked
again (``connection.transport``). A put that breaks later is not tried on the other lane, because only its caller knows
whether another attempt is allowed.

``auto`` takes the bulk lane at the first place that is reachable and speaks it, else gRPC. It skips other places
(also an older server's, or a proxy's that does not pass the upgrade) for ``DOWN_SECONDS``, and does not ask a server
that named none for as long.

Places
    The locations where a server takes puts on the bulk lane, the same for all its datasets. A driver learns them when
    it creates a dataset, and gives them to its tasks, which then need no gRPC call. Any other process asks once
    (:func:`places_of`), and again after a place failed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import pyarrow as pa

from flight_server.protocol import InvalidRequest, NotFound, PutCommand, Unavailable, Unsupported
from spark_client.connection import Compression, RemoteServer, TimedOut, Unreachable, check_compression

from .bulk_put import BulkWriter
from .grpc_put import GrpcWriter
from .http import HttpPool, NoBulkLane
from .lane import LaneWriter, Tries
from .partition_stream import DOWN_SECONDS


def open_writing(
    server: RemoteServer,
    command: PutCommand,
    schema: pa.Schema,
    places: Sequence[str] | None = None,
    compression: Compression = None,
    *,
    once: bool = False,
) -> LaneWriter:
    """Begin a put, on the lanes that ``server.writing`` allows.

    Args:
        places: the server's places, if the caller knows them; None to ask the server.
        compression: see ``compression``.
        once: see :class:`.PutStream`.

    Raises:
        InvalidRequest: an unknown codec; or only the bulk lane is allowed, and the server names no place for it.
        FlightShuffleError: the server's error, or the server cannot be reached.
        ValueError: an unknown lane.
    """
    check_compression(compression)
    lane = server.writing.lane
    if lane not in ("auto", "grpc", "bulk"):
        raise ValueError(f"lane is 'auto', 'grpc' or 'bulk', not {lane!r}")
    if lane == "grpc":
        return GrpcWriter(server, command, schema, compression, once=once)

    tries = Tries()

    def bulk() -> LaneWriter | None:
        failure: Unavailable | None = None
        try:
            for place in places_of(server, once=once) if places is None else places:
                pool = _pool(server, place)
                if lane == "auto" and (why := pool.left_alone) is not None:
                    tries.passed_over(place, why)
                    continue
                try:
                    return BulkWriter(pool, place, server, command, schema, compression=compression)
                except (NoBulkLane, Unreachable, TimedOut) as error:
                    pool.leave_alone(DOWN_SECONDS, error)
                    tries.failed(place, error)
                    if places is None:
                        _known(server).forget()
                    failure = error
            if failure is not None and lane == "bulk":
                raise failure
        finally:
            del failure  # whose traceback refers to this frame
        return None

    if lane == "auto":
        return bulk() or GrpcWriter(server, command, schema, compression, once=once, before=tries)
    if (writer := server.riding_out(bulk, once=once)) is not None:
        return writer
    raise InvalidRequest(
        f"the server {server.location} names no place for puts on the bulk lane: use lane='auto'"
    )


def places_of(server: RemoteServer, *, once: bool = False) -> tuple[str, ...]:
    """The server's places, from its last answer; empty if it has none. Raises FlightShuffleError: the server could not
    be asked.
    """
    known = _known(server)
    if not known.places and time.monotonic() >= known.until_seconds:
        # An older server has no such action.
        with contextlib.suppress(NotFound, Unsupported):
            known.places = tuple(server.action("locations", once=once).get("put_locations", ()))
        known.until_seconds = time.monotonic() + DOWN_SECONDS
    return known.places


class _Known:
    """A server's last answer; ``until_seconds`` is monotonic."""

    def __init__(self) -> None:
        self.places: tuple[str, ...] = ()
        self.until_seconds = 0.0

    def forget(self) -> None:
        """Ask again at the next put: a place failed, and the server may have moved."""
        self.places, self.until_seconds = (), 0.0

    def close(self) -> None:
        """For :meth:`RemoteServer.attached`; nothing is open."""


def _known(server: RemoteServer) -> _Known:
    return server.attached("places of puts", _Known)


def _pool(server: RemoteServer, place: str) -> HttpPool:
    # Not the readers' pool: an address may answer GETs and not accept the upgrade, or the reverse.
    parts = urlsplit(place)
    return server.attached(("puts", parts.scheme, parts.netloc), lambda: HttpPool(place, server))
