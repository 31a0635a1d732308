"""The ways in which a partition's frames travel. A lane makes one attempt; whole or an error.

Guarantee: :meth:`Reading.read_run` answers None only after the server has said that the partition was sent
to its end, and has said how much that was. Every other end is an error.

``grpc`` reads with DoGet, ``bulk`` with an HTTP GET. Both give the same frames and the same totals;
:mod:`spark_client.lanes.partition` chooses, counts, and tries again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa

from flight_server.errors import Unavailable
from flight_server.protocol import FRAMES_TRAILER, GENERATION_HEADER, ROWS_TRAILER
from spark_client.queues import Run

LaneChoice = Literal["auto", "grpc", "bulk"]


class BrokenStream(Unavailable):
    """A stream ended before its end; what was read is right, the rest is missing."""

    code = "broken_stream"


@dataclass(frozen=True, slots=True)
class Totals:
    """What the whole partition holds, from its first frame, in the server's words."""

    rows: int
    frames: int

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Totals | None:
        """None when the totals are not there, or are not numbers."""
        rows, frames = headers.get(ROWS_TRAILER, ""), headers.get(FRAMES_TRAILER, "")
        if not (rows.isdecimal() and frames.isdecimal()):
            return None
        return cls(int(rows), int(frames))


class Reading(Protocol):
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

    def read_run(self) -> Run | None:
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


def generation_of(reading: Reading) -> str | None:
    """The generation that the server reads from, if it said so."""
    return reading.headers.get(GENERATION_HEADER)
