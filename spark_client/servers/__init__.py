"""The driver's logic for datasets over servers: what is placed, sealed, held, lost, run again and released.
``DatasetMachine`` decides, without I/O; ``DriverLoop`` makes its calls; ``ServerList`` asks servers for people.
"""

from .dataset_machine import (
    RERUNS,
    DatasetMachine,
    HeldState,
    Holder,
    HolderKind,
    Scope,
    WrittenPortion,
    server_lost,
)
from .driver_calls import (
    DriverCall,
    Drop,
    Fail,
    FindObject,
    Look,
    Patience,
    PlannedDataset,
    RemoveObjects,
    Renew,
    Report,
    RunJob,
    Seal,
)
from .driver_loop import DriverLoop
from .server_list import DriverServer, ServerList, owner_of, place
from .server_table import Presence, ServerStart, ServerTable
