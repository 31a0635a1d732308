"""Where a partition can be read, in the order in which the places are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flight_server.protocol import REUSE_CONNECTION, InvalidRequest
from spark_client.connection import Server

from .lane import LaneChoice


@dataclass(frozen=True, slots=True)
class Address:
    """Where and how a partition can be read."""

    lane: Literal["grpc", "bulk"]
    location: str


def addresses(server: Server, locations: Sequence[str], lane: LaneChoice) -> list[Address]:
    """The addresses to try, in order, each once.

    Raises:
        InvalidRequest: the bulk lane alone was asked for, and no location has it.
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
