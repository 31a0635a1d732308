"""The driver's logic for datasets over servers: what is placed, sealed, held, lost, run again and released.
``DatasetMachine`` decides, without I/O; ``DriverLoop`` makes its calls; ``ServerList`` asks servers for people.
"""

from .dataset_machine import RERUNS, Holder, HolderKind, Scope, WrittenPortion
from .driver_calls import PlannedDataset, Report, RunJob
from .driver_loop import DriverLoop
from .server_list import DriverServer, ServerList, owner_of, place
from .server_table import ServerStart
