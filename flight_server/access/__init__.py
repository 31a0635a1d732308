"""Checks of tokens and of browsers' requests, for both lanes, and of servers that ``sources`` may pull from."""

from .auth import authorize, check
from .browsers import Doorkeeper
from .flight_locations import ANY_HOST, FlightLocation
