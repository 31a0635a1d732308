"""The client's side of a server: connections, calls, errors, leases, and the embedded server.

For ``client``, ``jobs``, ``merge`` and ``lanes``.
"""

from .advice import about, check_location, check_mode
from .calls import Call, EmbeddedEnded, ForkedProcess, TimedOut, Unreachable, immortal_in_children
from .drops import drop
from .leases import LeaseKeeper
from .owners import owner, owner_of_process, user
from .restarts import AWAY, retrying
from .stream_options import Compression, Reading, Timeouts, Writing, check_compression
from .transport import Server

__all__ = [
    "AWAY",
    "Call",
    "Compression",
    "EmbeddedEnded",
    "ForkedProcess",
    "LeaseKeeper",
    "Reading",
    "Server",
    "TimedOut",
    "Timeouts",
    "Unreachable",
    "Writing",
    "about",
    "check_compression",
    "check_location",
    "check_mode",
    "drop",
    "immortal_in_children",
    "owner",
    "owner_of_process",
    "retrying",
    "user",
]
