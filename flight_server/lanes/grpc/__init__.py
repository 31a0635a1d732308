"""The Flight RPCs and actions; the only place where errors become gRPC status."""

from .actions import Actions
from .service import LAST_WORDS_SECONDS, SERVICE, FlightService

__all__ = [
    "LAST_WORDS_SECONDS",
    "SERVICE",
    "Actions",
    "FlightService",
]
