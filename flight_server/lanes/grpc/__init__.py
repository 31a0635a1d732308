"""The gRPC lane: the Flight RPCs and actions. ``node`` makes it, ``server`` runs it."""

from .actions import Actions
from .service import LAST_WORDS_SECONDS, SERVICE, FlightService

__all__ = [
    "LAST_WORDS_SECONDS",
    "SERVICE",
    "Actions",
    "FlightService",
]
