"""Who may ask, and for what."""

from .auth import authorize, check
from .browsers import Doorkeeper
from .flight_locations import FlightLocation

__all__ = [
    "Doorkeeper",
    "FlightLocation",
    "authorize",
    "check",
]
