"""The driver's logic for datasets over many servers: placing, sealing, losing, running again. Only ``ServerList`` asks
the servers.
"""

from .server_list import DriverServer, ServerList, owner_of, place
from .spread_write import (
    RERUNS,
    Create,
    DriverCall,
    Drop,
    Fail,
    Report,
    RunJob,
    Seal,
    ServerStart,
    SpreadWrite,
    server_lost,
)
