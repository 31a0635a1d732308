"""The memory limit: the pool that counts bytes, the server's accounts in it, and the C heap."""

from .accounts import (
    ATTEMPT_BYTES,
    DATASET_BYTES,
    DICTIONARY_BYTES,
    FRAME_BYTES,
    MIN_MEMORY_LIMIT_BYTES,
    PARTITION_BYTES,
    RECORD_BYTES,
    STALL_SECONDS,
    Budget,
    Metadata,
    Pace,
    reserve,
)
from .allocator import resident_bytes
from .heap import LOOK_SECONDS, MAX_HOLES_BYTES, Heap
from .pool import MemoryPool, Reservation, Tally
