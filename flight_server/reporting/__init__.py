"""The server's reports: statistics, waits, metrics and FlightInfo."""

from .fellows import POST_SECONDS, Fellows
from .flight_infos import (
    Locations,
    expiration,
    filling,
    flight_info,
    info_bytes,
    next_look,
    poll_info,
    timestamp_scalar,
)
from .reports import Observed
