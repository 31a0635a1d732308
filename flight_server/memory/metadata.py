"""Metadata: the RAM that datasets, partitions, attempts, frames and dictionaries take beside their messages.

Guarantee: all of it but ``FRAME_BYTES`` is counted in the account ``metadata`` before it is taken, with the constants
below, which are upper bounds (``tests/flight_server/memory/test_metadata.py`` measures them).

``FRAME_BYTES`` are reserved in ``frames`` with the frame's message, and freed when the frame leaves RAM. Nothing in
``metadata`` can be spilled. A record stays until its frame is released, a dictionary's object until the last frame
that needs it is; the others stay with their dataset.
"""

from __future__ import annotations

from typing import Any

from flight_server.protocol import OutOfBudget

from .pool import MemoryPool, Reservation

FRAME_BYTES = 512
"""A frame in RAM: the object, its payload, its reservation and its entry among those in RAM."""
RECORD_BYTES = 32
"""A frame, in RAM or not, in a ``FrameTable``: 28 bytes, and what a growing array keeps in reserve."""
DICTIONARY_BYTES = 1024
"""A dictionary message, in RAM or not: the object, its place on disk, and a state that it is the latest of."""
DATASET_BYTES = 5120
"""A dataset: the object, its first partition, its entries in the catalogue, a durable one's files, and up to 1 KiB
for keys of instances' dictionaries, which CPython shares or not."""
PARTITION_BYTES = 1536
"""Each further partition that a request has asked for."""
ATTEMPT_BYTES = 1280
"""One attempt."""


class Metadata:
    """Reserves the objects' bytes. ``pool`` is the account; None for one without a limit."""

    __slots__ = ("pool",)

    def __init__(self, pool: MemoryPool | None = None) -> None:
        self.pool = MemoryPool(None, "metadata") if pool is None else pool

    def reserve(self, size_bytes: int, what: str, **detail: Any) -> Reservation:
        """Reserve bytes for ``what``, before it is made. Never waits. Raises OutOfBudget if the account is full."""
        reservation = self.pool.empty()
        self.grow(reservation, size_bytes, what, **detail)
        return reservation

    def grow(self, reservation: Reservation, size_bytes: int, what: str, **detail: Any) -> None:
        """Add bytes to a reservation, as :meth:`reserve` does."""
        pool = self.pool
        # Only this account's own limit counts: the spiller makes room in ``frames``, which it is a part of.
        if size_bytes and pool.limit_bytes is not None and pool.used_bytes + size_bytes > pool.limit_bytes:
            raise OutOfBudget(
                f"there is no room for {what}: what this server keeps in RAM of datasets, partitions and frames "
                f"takes {pool.used_bytes} of {pool.limit_bytes} bytes; drop datasets, write fewer and larger "
                "batches, or raise --memory-limit",
                wanted_bytes=size_bytes,
                **detail,
            )
        reservation.grow(size_bytes)
