"""How a partition is read and a put is sent, on either lane; for ``client``, ``merge``, ``jobs`` and ``broadcast``."""

from .lane import Batch, BatchRun, BrokenStream, Closed
from .partition_stream import PartitionStream, partition_streams
from .put_stream import PutStream, as_reader, put_async
from .version_stream import CutRead, Step, VersionStream

__all__ = [
    "Batch",
    "BatchRun",
    "BrokenStream",
    "Closed",
    "CutRead",
    "PartitionStream",
    "PutStream",
    "Step",
    "VersionStream",
    "as_reader",
    "partition_streams",
    "put_async",
]
