"""The addresses where a partition can be read, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flight_server.protocol import REUSE_CONNECTION, InvalidRequest
from spark_client.connection import RemoteServer

from .lane import LaneChoice


@dataclass(frozen=True, slots=True)
class Address:
    """A location and the lane that it speaks."""

    lane: Literal["grpc", "bulk", "object"]
    location: str


def addresses(server: RemoteServer, locations: Sequence[str], lane: LaneChoice) -> list[Address]:
    """The addresses to try, each once: those of the bulk lane first, then in the order of ``locations``.

    ``arrow-flight-reuse-connection://?`` means ``server``, which is also added if no location speaks gRPC.

    Raises:
        InvalidRequest: ``lane`` is ``bulk``, and no location has the bulk lane.
        ValueError: an unknown lane.
    """
    if lane not in ("auto", "grpc", "bulk"):
        raise ValueError(f"lane is 'auto', 'grpc' or 'bulk', not {lane!r}")
    found: list[Address] = []
    for location in locations:
        if location.startswith(REUSE_CONNECTION.rstrip("?")):
            found.append(Address("grpc", server.location))
        elif location.startswith(("http://", "https://")):
            found.append(Address("bulk", location))
        elif location.startswith("grpc"):
            found.append(Address("grpc", location))
    if not any(address.lane == "grpc" for address in found):
        found.append(Address("grpc", server.location))
    found = list(dict.fromkeys(found))
    found.sort(key=lambda address: address.lane != "bulk")
    if lane != "auto":
        found = [address for address in found if address.lane == lane]
    if not found:
        raise InvalidRequest(
            f"the server {server.location} names no http:// location, so it has no bulk lane: use lane='auto'"
        )
    return found
