"""How a partition is read and a put is sent, on either lane."""

from .cursors import PartitionCursor, PortionCursor
from .http import NoBulkLane
from .lane import Batch, BatchBurst, BrokenStream, Closed
from .object_get import store_of
from .put_stream import PutStream, as_reader, put_async
from .read_stream import ReadStream, StreamStalled, partition_streams
from .version_cursor import CutRead, VersionCursor
