"""Tells the server which frames have come, where the dataset's retention counts its readers.

Guarantee: only frames that have been received and checked are acknowledged, and all of them are at the end of a
stream that was whole. An acknowledgement that fails is no error: the server then keeps the frames for longer.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping

from flight_server.protocol import ACKNOWLEDGE, ACKNOWLEDGE_HEADER, AcknowledgeRequest, FlightShuffleError
from spark_client.connection import Server

from .lane import BatchRun

EVERY_BYTES = 32 << 20
"""Of decoded bytes. What was not acknowledged yet can be read again, and takes memory or disk on the server."""


class Acknowledging:
    """Of one stream."""

    def __init__(self, server: Server, dataset: str, partition: int | None) -> None:
        self.reader = uuid.uuid4().hex
        self._server = server
        self._dataset = dataset
        self._partition = partition or 0
        self._generation: str | None = None
        self._bytes = 0

    def opened(self, headers: Mapping[str, str], generation: str | None) -> None:
        """Take from a connection's headers whether acknowledgements count."""
        self._generation = generation if ACKNOWLEDGE_HEADER in headers else None

    def received(self, run: BatchRun, frames: int) -> None:
        """A run has come, and with it the first ``frames`` frames are there."""
        if self._generation is not None:
            self._bytes += run.shared_bytes or sum([batch.nbytes for batch in run.batches])
            if self._bytes >= EVERY_BYTES:
                self.all_received(frames)

    def all_received(self, frames: int) -> None:
        """Say that the first ``frames`` frames have come."""
        self._bytes = 0
        if self._generation is not None:
            request = AcknowledgeRequest(
                self._dataset, self._generation, self._partition, self.reader, frames
            )
            with contextlib.suppress(FlightShuffleError):
                self._server.action(ACKNOWLEDGE, request.encode())
