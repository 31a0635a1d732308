"""The driver's logic for datasets over many servers: placing, sealing, losing, running again. Only ``ServerList`` asks
the servers.
"""

from .server_list import DriverServer, ServerList, owner_of, place
from .spread_write import (
    EXACT_SIZES,
    LARGEST_SIZES,
    RERUNS,
    CancelJob,
    Create,
    DriverCall,
    Drop,
    Fail,
    PartitionSizes,
    Renew,
    Report,
    RunJob,
    Seal,
    SealTotals,
    ServerStart,
    SpreadWrite,
    WriteState,
    WrittenPortion,
    server_lost,
)
