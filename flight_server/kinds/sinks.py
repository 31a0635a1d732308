"""Sinks: where the messages of one put go.

Guarantee: nothing of a put is kept before its commit or its clean end, except that readers of a stream get its frames
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from flight_server.datasets import Catalogue, Dataset, own_start
from flight_server.frames import Frame
from flight_server.memory import Reservation
from flight_server.protocol import (
    VERSIONED,
    Commit,
    FlightShuffleError,
    InvalidRequest,
    PutCommand,
)


class Sink:
    """Takes one put: a :class:`FrameSink` or a :class:`BatchSink`."""

    dataset: Dataset

    @property
    def silent_seconds(self) -> float:
        """For how long from now on the server waits for its client beyond ``put_idle_seconds``, see ``receiving``."""
        return 0.0

    async def commit(self, totals: Commit) -> dict[str, Any]:
        """Take the producer's commit; returns its answer."""
        raise NotImplementedError

    async def end(self) -> dict[str, Any] | None:
        """Take the clean end of the producer's stream; returns the last answer to the client."""
        raise NotImplementedError

    def abort(self, cause: FlightShuffleError) -> None:
        """Take the producer's failure, at any time before ``end`` has returned. Twice is fine."""
        raise NotImplementedError


class FrameSink(Sink):
    """Takes messages as frames; nothing follows its commit."""

    def place(self, metadata: bytes) -> int:
        """The partition of a batch with this app_metadata."""
        raise NotImplementedError

    def publish(self, partition: int, frame: Frame) -> None:
        """Store a frame of a partition."""
        raise NotImplementedError


class BatchSink(Sink):
    """Takes messages as decoded batches; more of them can follow a commit."""

    async def add(
        self, batch: pa.RecordBatch, room: Reservation, dictionaries: Sequence[Reservation]
    ) -> None:
        """Take a batch; ``room`` counts its bytes, ``dictionaries`` those in force (``frames.DictionaryRooms``)."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin anew after a commit."""
        raise NotImplementedError


def committed(dataset: Dataset, rows: int, size_bytes: int, **more: Any) -> dict[str, Any]:
    """The answer to a commit. It names the start of this server, because a client may have meant another one."""
    facts = {"committed": True, "rows": rows, "bytes": size_bytes, "generation": dataset.generation}
    return {**facts, "start": own_start(), **more}


def check_totals(
    totals: Commit, rows: int, frames: int, dataset: Dataset, partition: int | None = None
) -> None:
    """Raise InvalidRequest unless a commit says what has arrived."""
    if totals != Commit(rows, frames):
        raise InvalidRequest.about(
            dataset.name,
            f": the commit says {totals.rows} rows in {totals.frames} frames, but {rows} rows in {frames} frames "
            "arrived; write it again",
            partition=partition,
        )


def check_no_deletes(catalogue: Catalogue, command: PutCommand) -> None:
    """Raise InvalidRequest if the put deletes rows, or as :meth:`Catalogue.find`."""
    if command.delete:
        catalogue.find(command.dataset, command.generation)
        raise InvalidRequest.about(
            command.dataset, f"is not a {VERSIONED}: nothing can be deleted from it by key"
        )


def check_no_transaction(command: PutCommand) -> None:
    """Raise InvalidRequest if the put has a transaction."""
    if command.transaction is not None:
        raise InvalidRequest.about(
            command.dataset, f"is not a {VERSIONED}: a put into it has no 'transaction'"
        )
