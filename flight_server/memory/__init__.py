"""The memory limit: the pool, its accounts, and the allocator under them."""

from .accounts import MIN_MEMORY_LIMIT_BYTES, STALL_SECONDS, Budget, Pace, reserve
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
    "MemoryPool",
    "Metadata",
    "Pace",
    "Reservation",
    "reserve",
]
