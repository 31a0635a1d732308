"""The driver's logic for datasets over many servers: placing, sealing, losing, running again. Only ``ServerList`` asks
the servers.
"""

from .driver_calls import CancelJob, Create, DriverCall, Drop, Fail, Renew, Report, RunJob, Seal, ServerStart
from .driver_server import DriverServer
from .partition_sizes import EXACT_SIZES, LARGEST_SIZES, PartitionSizes
from .placing import place
from .portions import SealTotals, WrittenPortion, server_lost
from .server_list import ServerList, owner_of
from .spread_write import RERUNS, SpreadWrite, WriteState
