"""Metadata: what the server keeps in RAM of each dataset, partition, attempt, frame and dictionary beside its bytes.

Guarantee: each of them is counted in the account ``metadata`` before it is made, with the constants below, which
are not less than what it takes (``tests/flight_server/test_metadata.py`` measures them). When the account is
full, making another one raises :class:`~flight_server.protocol.OutOfBudget`, and nothing else changes.

A frame in RAM takes ``FRAME_BYTES`` beside its message. These are reserved together with the message in the
account ``frames``, and come back when the frame leaves RAM. What stays of it is a record in a ``FrameTable``, of
``RECORD_BYTES``. Records, datasets, partitions and attempts cannot be spilled: they stay until their dataset goes.
So do the objects of dictionaries, whose messages can be spilled.
"""

from __future__ import annotations

from typing import Any

from flight_server.protocol import OutOfBudget

from .pool import MemoryPool, Reservation

FRAME_BYTES = 512
"""Of a frame in RAM: itself, its payload, its reservation and its place among those in RAM."""
RECORD_BYTES = 32
"""Of every frame, in RAM or not: 28 bytes, and what a growing array keeps in reserve."""
DICTIONARY_BYTES = 1024
"""Of every dictionary message, in RAM or not: itself, its place on disk, and a state that it is the latest of."""
DATASET_BYTES = 5120
"""Of a dataset: itself, its first partition, its entries in the catalogue, what a durable one has besides. CPython
shares the keys of instances' dictionaries or does not, by what the process did before: up to 1 KiB of it."""
PARTITION_BYTES = 1536
"""Of each further partition, once it has been asked for."""
ATTEMPT_BYTES = 1280
"""Of one try of a shuffle's producer."""


class Metadata:
    """See the module's text.

    Args:
        pool: the account; None for one without a limit.
    """

    __slots__ = ("pool",)

    def __init__(self, pool: MemoryPool | None = None) -> None:
        self.pool = MemoryPool(None, "metadata") if pool is None else pool

    def reserve(self, size_bytes: int, what: str, **detail: Any) -> Reservation:
        """Bytes for ``what``, which is about to be made. Never waits.

        Raises:
            OutOfBudget: the account is full.
        """
        reservation = self.pool.empty()
        self.grow(reservation, size_bytes, what, **detail)
        return reservation

    def grow(self, reservation: Reservation, size_bytes: int, what: str, **detail: Any) -> None:
        """The same, added to a reservation.

        Raises:
            OutOfBudget: the account is full.
        """
        pool = self.pool
        # Only this account's own limit counts: frames make room for metadata, by being spilled.
        if size_bytes and pool.limit_bytes is not None and pool.used_bytes + size_bytes > pool.limit_bytes:
            raise OutOfBudget(
                f"there is no room for {what}: what this server keeps in RAM of datasets, partitions and frames "
                f"takes {pool.used_bytes} of {pool.limit_bytes} bytes; drop datasets, write fewer and larger "
                "batches, or raise --memory-limit",
                wanted_bytes=size_bytes,
                **detail,
            )
        reservation.grow(size_bytes)
