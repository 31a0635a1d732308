"""How a partition is read and a put is sent, on either lane."""

from .lane import Batch, BatchBurst, BrokenStream, Closed
from .object_get import store_of
from .partition_stream import PartitionStream, partition_streams
from .portion_stream import PortionStream, StoredPortionStream
from .put_stream import PutStream, as_reader, put_async
from .version_stream import CutRead, Step, VersionStream
