"""Tells the server which frames a stream has received, if the dataset's retention counts its readers.

Guarantee: only received frames are acknowledged, after their lane's checks; at the end of a whole stream all are. An
acknowledgement that fails is no error: the server then keeps the frames for longer.

Names
    A stream whose ticket names no reader is a reader of its own. A name in the ticket is that of a task which may be
    tried again from its first frame, and is one reader all the same: it acknowledges at its end only.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping

from flight_server.protocol import ACKNOWLEDGE, ACKNOWLEDGE_HEADER, AcknowledgeRequest, FlightShuffleError
from spark_client.connection import RemoteServer

from .lane import BatchBurst

EVERY_BYTES = 32 << 20
"""Decoded bytes between two acknowledgements; the server keeps the frames until then."""


class Acknowledging:
    """The acknowledgements of one stream."""

    def __init__(
        self, server: RemoteServer, dataset: str, partition: int | None, reader: str | None = None
    ) -> None:
        self.reader = reader or uuid.uuid4().hex
        self._only_at_end = reader is not None
        self._server = server
        self._dataset = dataset
        self._partition = partition or 0
        self._generation: str | None = None
        self._bytes = 0

    def opened(self, headers: Mapping[str, str], generation: str | None) -> None:
        """Send acknowledgements only if the new connection's headers ask for them."""
        self._generation = generation if ACKNOWLEDGE_HEADER in headers else None

    def received(self, burst: BatchBurst, frames: int) -> None:
        """Count a burst, after which ``frames`` frames have been received. Acknowledges every ``EVERY_BYTES``."""
        if self._generation is not None:
            # Not nbytes, at which Arrow 26 crashes for a union without rows.
            self._bytes += burst.shared_bytes or sum(
                [batch.get_total_buffer_size() for batch in burst.batches]
            )
            if self._bytes >= EVERY_BYTES and not self._only_at_end:
                self.all_received(frames)

    def all_received(self, frames: int) -> None:
        self._bytes = 0
        if self._generation is not None:
            request = AcknowledgeRequest(
                self._dataset, self._generation, self._partition, self.reader, frames
            )
            with contextlib.suppress(FlightShuffleError):
                self._server.action(ACKNOWLEDGE, request.encode(), once=True)
