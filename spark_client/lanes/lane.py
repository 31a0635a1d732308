"""The ways in which frames travel, from the server and to it. A lane makes one attempt; whole or an error.

Guarantee: :meth:`LaneReader.read_run` answers None only after the server has said that the partition was sent
to its end, and has said how much that was; :meth:`LaneWriter.finish` returns only after the server has said that
it has taken all that was written. Every other end is an error.

Reading: ``grpc`` is DoGet, ``bulk`` an HTTP GET. Both give the same frames and the same totals;
:mod:`spark_client.lanes.partition_stream` chooses, counts, and tries again.

Writing: ``grpc`` is DoPut, ``bulk`` an HTTP connection that is upgraded. Both send the same messages;
:mod:`spark_client.lanes.writing` chooses. Nothing is tried again: an attempt that broke off is never
visible, and whoever makes attempts makes another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from flight_server.protocol import (
    CRC_TRAILER,
    FRAMES_TRAILER,
    GENERATION_HEADER,
    ROWS_TRAILER,
    Commit,
    FlightShuffleError,
    Unavailable,
)

LaneChoice = Literal["auto", "grpc", "bulk"]


Batch = Any
"""A ``pyarrow.RecordBatch``; pyarrow publishes no types."""


class Closed(FlightShuffleError):
    """The consumer, or somebody for it, closed the stream before its end."""

    code = "closed"


class BrokenStream(Unavailable):
    """A stream ended before its end; what was read is right, the rest is missing."""

    code = "broken_stream"


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Consecutive batches of one stream that were received together; at least one.

    ``shared_bytes`` is the size of the allocation that all of them keep alive, 0 if each has its own.
    ``checksums`` are those of their messages, if the lane has seen them.
    """

    batches: list[Batch]
    shared_bytes: int = 0
    checksums: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """What the whole partition holds, from its first frame, in the server's words."""

    rows: int
    frames: int
    crc32c: int | None = None
    """Of the frames' checksums (see ``flight_server.protocol.checksums``), if the server says it."""

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Totals | None:
        """None when the totals are not there, or are not numbers."""
        rows, frames = headers.get(ROWS_TRAILER, ""), headers.get(FRAMES_TRAILER, "")
        if not (rows.isdecimal() and frames.isdecimal()):
            return None
        try:
            return cls(int(rows), int(frames), int(headers.get(CRC_TRAILER, ""), 16))
        except ValueError:
            return cls(int(rows), int(frames))


class LaneReader(Protocol):
    """One attempt at reading a partition from some frame on. Made without waiting, then opened once."""

    def open(self) -> pa.Schema:
        """Wait for the schema.

        Raises:
            TimedOut: not within ``first_message_seconds``.
            FlightShuffleError: the server's error, or that there is no way to it.
        """

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers and trailers that have come so far, in small letters."""

    @property
    def totals(self) -> Totals | None:
        """After ``read_run`` answered None: what the server says the partition holds."""

    def read_run(self) -> BatchRun | None:
        """Wait for the next frame; its batch and those that came with it. None at the confirmed end.

        Raises:
            FlightShuffleError: the server's error, or :class:`BrokenStream`.
        """

    def cancel(self) -> None:
        """End an ``open`` or ``read_run`` that waits, where the lane can, from any thread; twice is fine.

        Takes no lock and does not wait.
        """

    def close(self) -> None:
        """Let go of what the attempt holds. Not while another thread reads; twice is fine."""


def generation_of(reading: LaneReader) -> str | None:
    """The generation that the server reads from, if it said so."""
    return reading.headers.get(GENERATION_HEADER)


class LaneWriter(Protocol):
    """One put, from when it was opened. Any error ends it, and nothing of it is kept then.

    Of one thread at a time; only ``cancel`` may come from another.
    """

    def write(self, batch: Any, metadata: bytes, *, hold: bool) -> None:
        """Send a batch with its app_metadata; with ``hold`` it may go with a later one, or with the end.

        Raises:
            FlightShuffleError: the server's error, or that the connection broke.
        """

    def finish(self, totals: Commit) -> list[bytes]:
        """Send the last message, the commit; the answers, once the server has accepted the put.

        Raises:
            FlightShuffleError: as :meth:`write`.
        """

    def cancel(self) -> None:
        """End a ``write`` or ``finish`` that waits, where the lane can, from any thread; twice is fine.

        Takes no lock and does not wait.
        """

    def abandon(self) -> None:
        """End it without its last message, if it has not ended. Twice is fine."""
