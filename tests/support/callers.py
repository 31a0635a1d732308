"""Callers that may do everything, as those of a server without tokens."""

from __future__ import annotations

from flight_server.access import ANYONE, OPERATIONS
from flight_server.access.principals import unlimited
from flight_server.datasets import Caller, Catalogue


def anyone(catalogue: Catalogue, call: str = "DoGet", peer: str = "unknown") -> Caller:
    """The caller of a call."""
    return Caller(catalogue, unlimited(ANYONE), OPERATIONS[call], peer)
