"""The contract of the two lanes. A lane reader and a lane writer make one attempt each: whole or an error.

Guarantee: :meth:`LaneReader.read_burst` returns None only after the server has sent the partition's end and its totals;
:meth:`LaneWriter.finish` returns only after the server has accepted the whole put. Every other end is an error. Both
lanes carry the same frames, messages and totals.

``read_stream`` chooses the lane of a read (DoGet or an HTTP GET), and tries again; ``cursors`` compare the totals.
``put_stream`` chooses that of a put (DoPut or an upgraded HTTP connection), and tries none again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from flight_server.protocol import (
    CRC_TRAILER,
    FRAMES_TRAILER,
    ROWS_TRAILER,
    Commit,
    FlightShuffleError,
    Unavailable,
)

Batch = Any
"""A ``pyarrow.RecordBatch``; pyarrow publishes no types."""
_MAX_DIGITS = 18


class Closed(FlightShuffleError):
    """The stream was closed or cancelled before its end."""

    code = "closed"


class BrokenStream(Unavailable):
    """A connection ended before the stream's end; the batches read so far are right."""

    code = "broken_stream"


@dataclass(frozen=True, slots=True)
class BatchBurst:
    """Consecutive batches of one stream that were received together; at least one.

    ``shared_bytes`` is the size of the allocation that all of them keep alive, 0 if each has its own. ``checksums``
    are those of the batches' messages, or empty if the lane does not see them. ``metadata`` has each message's own
    metadata: a KeyValueMetadata (bulk lane), a Buffer (gRPC lane), or None. ``part`` is the place, among the
    parts of what is read, of the partition that they are of (``cursors``); of a changelog that is followed, their
    version.
    """

    batches: list[Batch]
    shared_bytes: int = 0
    checksums: Sequence[int] = ()
    metadata: Sequence[Any] = ()
    part: int = 0


@dataclass(frozen=True, slots=True)
class ReadTotals:
    """The server's totals of the whole partition, or, with ``until``, of the range that was asked for."""

    rows: int
    frames: int
    crc32c: int | None = None
    """The running checksum of all frames (``protocol.checksums``), if the server sends it."""

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> ReadTotals | None:
        """The totals in these headers; None if rows or frames are missing or no numbers."""
        rows, frames = headers.get(ROWS_TRAILER, ""), headers.get(FRAMES_TRAILER, "")
        if not (rows.isdecimal() and frames.isdecimal()) or max(len(rows), len(frames)) > _MAX_DIGITS:
            return None
        try:
            return cls(int(rows), int(frames), int(headers.get(CRC_TRAILER, ""), 16))
        except ValueError:
            return cls(int(rows), int(frames))


class Tries:
    """What each address ended with since the last progress, for errors: also that one which was not tried.

    It keeps texts, not errors: those refer to frames, which have sockets.
    """

    def __init__(self) -> None:
        self._ends: dict[str, tuple[int, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._ends)

    def __str__(self) -> str:
        return "; ".join(
            f"{count} tries at {location}, the last: {why}"
            if count > 1
            else f"{'one try' if count else 'no try'} at {location}: {why}"
            for location, (count, why) in self._ends.items()
        )

    def failed(self, location: str, error: FlightShuffleError) -> None:
        """A try was made."""
        count, _ = self._ends.get(location, (0, ""))
        self._ends[location] = count + 1, error.message

    def passed_over(self, location: str, why: str) -> None:
        """No try was made now; an earlier one says more."""
        self._ends.setdefault(location, (0, why))

    def clear(self) -> None:
        self._ends.clear()


class LaneReader(Protocol):
    """One attempt to read a partition from a given frame on. The constructor does not wait; ``open`` is called once.

    Errors are :class:`FlightShuffleError`: the server's own, or the connection's.
    """

    def open(self) -> pa.Schema:
        """Wait for the schema. Raises TimedOut: not within ``first_message_seconds``."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers and trailers received so far, by names in lower case."""

    @property
    def totals(self) -> ReadTotals | None:
        """The server's totals, once ``read_burst`` has returned None."""

    def read_burst(self) -> BatchBurst | None:
        """Wait for the next frame; its batch and those received with it. None at the confirmed end. Raises
        BrokenStream: the connection ended.
        """

    def cancel(self) -> None:
        """End a waiting ``open`` or ``read_burst``, where the lane can, from any thread and without a lock. Twice is
        fine.
        """

    def close(self) -> None:
        """Release the connection. Not while another thread reads; twice is fine."""


class LaneWriter(Protocol):
    """One open put, for one thread but ``cancel``.

    Any error, the server's or the connection's, ends it, and the server keeps nothing of it.
    """

    @property
    def place(self) -> str:
        """The address that takes it."""

    def write(self, batch: Any, metadata: bytes, *, hold: bool) -> None:
        """Send a batch with its app_metadata; with ``hold`` it may wait for a later one or the commit."""

    def commit(self, totals: Commit) -> bytes:
        """Send a commit, of a put that goes on: into a changelog, one version for each; the server's answer."""

    def finish(self, totals: Commit | None) -> list[bytes]:
        """Send the commit, the last message, or None after ``commit``; the server's answers that were not yet read,
        once it has accepted the put.
        """

    def cancel(self) -> None:
        """As :meth:`LaneReader.cancel`, for ``write``, ``commit`` and ``finish``."""

    def abandon(self) -> None:
        """End the put without its last message, if it has not ended. Twice is fine."""
