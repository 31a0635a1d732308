"""The gRPC lane: the Flight RPCs and actions."""

from .actions import Actions
from .health import Health
from .pending_reads import PendingReads
from .service import LAST_WORDS_SECONDS, SERVICE, FlightService
