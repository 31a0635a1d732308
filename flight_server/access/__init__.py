"""Checks of who may ask, and for what: the server's token, browsers' requests, and addresses of other servers.

Both lanes check their requests here; ``sources`` checks the servers that it may pull from.
"""

from .auth import authorize, check
from .browsers import Doorkeeper
from .flight_locations import FlightLocation

__all__ = [
    "Doorkeeper",
    "FlightLocation",
    "authorize",
    "check",
]
