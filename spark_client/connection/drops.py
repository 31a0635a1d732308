"""Drops, also of a server that is away for a moment, and of a dataset over several servers.

A drop by name is sent once, because it is not fine twice: when its answer is lost, the name may lead to another dataset
by the next try. That of a generation is; then a generation that is gone was dropped.

A server drops its own part of a dataset, and says whether others have one. Those are asked, too, once each: of one that
does not answer, the part goes when its lease ends.
"""

from __future__ import annotations

import contextlib

from flight_server.protocol import DatasetRequest, FlightShuffleError, NotFound, Ticket

from .transport import RemoteServer

_SECONDS = 10.0
"""The deadline of each other server."""


def drop(server: RemoteServer, dataset: str, generation: str | None = None) -> None:
    """Drop a generation of a dataset, or, without one, that which the name leads to.

    Raises:
        NotFound: there is none.
        Unavailable: it may be dropped or not.
    """
    request, tries = DatasetRequest(dataset, generation).encode(), 0
    said = server.action("renew", request)  # which waits until the server is back
    others = _others(server, dataset) if said.get("server_count", 1) > 1 else {}

    def call() -> None:
        nonlocal tries
        tries += 1
        try:
            server.action("drop", request, once=True)
        except NotFound:
            if tries == 1:
                raise

    server.riding_out(call, once=generation is None)
    for location, of_others in others.items():
        with contextlib.suppress(FlightShuffleError):
            server.at(location).action("drop", of_others, _SECONDS, once=True)


def _others(server: RemoteServer, dataset: str) -> dict[str, bytes]:
    """What to ask of each server that has a part, or a copy of one, by its location; none if a part has failed."""
    found: dict[str, bytes] = {}
    try:
        endpoints = server.flight_info(dataset).endpoints
    except FlightShuffleError:
        return found
    for endpoint in endpoints:
        request = DatasetRequest(dataset, Ticket.parse(endpoint.ticket.ticket).generation).encode()
        locations = (each.uri.decode() for each in endpoint.locations)
        found.update(dict.fromkeys((each for each in locations if each.startswith("grpc")), request))
    return found
