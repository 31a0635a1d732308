"""The server's reports: statistics, waits, metrics, FlightInfo and first rows."""

from .fellows import POST_SECONDS, Fellows
from .first_rows import first_rows_answer
from .flight_infos import (
    Locations,
    filling,
    flight_info,
    info_bytes,
    lease_field,
    next_look,
    poll_info,
)
from .history import SAMPLE_SECONDS, History
from .reports import ListedPage, Observed, Page, datasets_answer, statistics_answer, why_answer
from .served_calls import CUT_SECONDS, SUPPRESSED_SECONDS, Calls, ServedCall
