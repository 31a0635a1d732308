"""The datasets of a server: their partitions and attempts, states, leases and retention, and the catalogue of names."""

from .attachment import Append, Attachment, Sees
from .attempts import Attempt
from .callers import Caller
from .catalogue import Catalogue
from .counters import Counters
from .dataset import Dataset
from .generations import dropped_by, is_earlier_run, own_start
from .on_disk import OnDisk
from .partition import Partition, PartitionState, Totals
from .spread import check_names_start, check_servers, server_count, set_servers, whole
from .staged_writes import Sealed, check_as_durable, check_mode
from .transactions import Transactions
