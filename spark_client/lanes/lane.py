"""The contract of the two lanes. A lane reader and a lane writer make one attempt each: whole or an error.

Guarantee: :meth:`LaneReader.read_run` returns None only after the server has sent the partition's end and its
totals; :meth:`LaneWriter.finish` returns only after the server has accepted the whole put. Every other end is an
error.

Reading: ``grpc`` is DoGet, ``bulk`` an HTTP GET. Both give the same frames and the same totals; ``partition_stream``
chooses the lane, compares the totals, and tries again.

Writing: ``grpc`` is DoPut, ``bulk`` an upgraded HTTP connection. Both send the same messages; ``writing`` chooses
the lane. A put is not tried again: a broken attempt is never visible, and the task that made it makes another.
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
    """The stream was closed or cancelled before its end."""

    code = "closed"


class BrokenStream(Unavailable):
    """A connection ended before the stream's end; the batches read so far are right, the rest is missing."""

    code = "broken_stream"


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Consecutive batches of one stream that were received together; at least one.

    ``shared_bytes`` is the size of the allocation that all of them keep alive, 0 if each has its own.
    ``checksums`` has one checksum for each batch's message, and is empty if the lane does not see the messages.
    """

    batches: list[Batch]
    shared_bytes: int = 0
    checksums: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals that the server sends, of the whole partition from its first frame."""

    rows: int
    frames: int
    crc32c: int | None = None
    """The running checksum of all frames (see ``protocol.checksums``); None if the server sends none."""

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Totals | None:
        """The totals in these headers; None when rows or frames are missing or are not numbers."""
        rows, frames = headers.get(ROWS_TRAILER, ""), headers.get(FRAMES_TRAILER, "")
        if not (rows.isdecimal() and frames.isdecimal()):
            return None
        try:
            return cls(int(rows), int(frames), int(headers.get(CRC_TRAILER, ""), 16))
        except ValueError:
            return cls(int(rows), int(frames))


class LaneReader(Protocol):
    """One attempt to read a partition from a given frame on. The constructor does not wait; ``open`` is called once."""

    def open(self) -> pa.Schema:
        """Wait for the schema.

        Raises:
            TimedOut: not within ``first_message_seconds``.
            FlightShuffleError: the server's error, or the server cannot be reached.
        """

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers and trailers received so far, names in lower case."""

    @property
    def totals(self) -> Totals | None:
        """The server's totals, after ``read_run`` has returned None; None before."""

    def read_run(self) -> BatchRun | None:
        """Wait for the next frame; its batch and those received with it. None at the confirmed end.

        Raises:
            FlightShuffleError: the server's error, or :class:`BrokenStream`.
        """

    def cancel(self) -> None:
        """End a waiting ``open`` or ``read_run``, where the lane can. Callable from any thread; twice is fine.

        Takes no lock and does not wait.
        """

    def close(self) -> None:
        """Release the connection. Not while another thread reads; twice is fine."""


def generation_of(reading: LaneReader) -> str | None:
    """The generation that the server reads from; None if it sends none."""
    return reading.headers.get(GENERATION_HEADER)


class LaneWriter(Protocol):
    """One open put. Any error ends it, and the server then keeps nothing of it.

    One thread at a time may use it; only ``cancel`` may be called from another.
    """

    def write(self, batch: Any, metadata: bytes, *, hold: bool) -> None:
        """Send a batch with its app_metadata; with ``hold`` it may be sent with a later batch or the commit.

        Raises:
            FlightShuffleError: the server's error, or the connection broke.
        """

    def finish(self, totals: Commit) -> list[bytes]:
        """Send the commit, the last message; the server's answers, once it has accepted the put.

        Raises:
            FlightShuffleError: as :meth:`write`.
        """

    def cancel(self) -> None:
        """End a waiting ``write`` or ``finish``, where the lane can. As :meth:`LaneReader.cancel`."""

    def abandon(self) -> None:
        """End the put without its last message, if it has not ended. Twice is fine."""
