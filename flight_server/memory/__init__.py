"""The memory limit: the pool that counts bytes, the server's accounts in it, and the C heap.

The server's rooms from ``storage`` up reserve here; ``spark_client`` counts its merge queues in its own pool.
"""

from .accounts import MIN_MEMORY_LIMIT_BYTES, STALL_SECONDS, Budget, Pace, reserve
from .decoding import Decoding
from .heap import Heap
from .metadata import (
    ATTEMPT_BYTES,
    DATASET_BYTES,
    DICTIONARY_BYTES,
    FRAME_BYTES,
    PARTITION_BYTES,
    RECORD_BYTES,
    Metadata,
)
from .pool import MemoryPool, Reservation

__all__ = [
    "ATTEMPT_BYTES",
    "DATASET_BYTES",
    "DICTIONARY_BYTES",
    "FRAME_BYTES",
    "MIN_MEMORY_LIMIT_BYTES",
    "PARTITION_BYTES",
    "RECORD_BYTES",
    "STALL_SECONDS",
    "Budget",
    "Decoding",
    "Heap",
    "MemoryPool",
    "Metadata",
    "Pace",
    "Reservation",
    "reserve",
]
