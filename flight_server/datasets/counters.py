"""Counters: what happened since the start; only ever growing."""

from __future__ import annotations

from dataclasses import dataclass

from flight_server.frames import Frame


@dataclass
class Counters:
    """Of one server; each part of it adds what it does."""

    puts: int = 0
    gets: int = 0
    frames_in: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    frames_out: int = 0
    bytes_out: int = 0
    # Record batches that were encoded for this server, by producers or by its own sources. The fan-out
    # encodes nothing, so this equals the number of frames that came in, for any number of readers.
    encodes: int = 0
    frames_read_back: int = 0
    bytes_read_back: int = 0
    readers_ended_as_too_slow: int = 0
    # Of source datasets: how often a partition was pulled, and how often that failed.
    pulls: int = 0
    pulls_failed: int = 0

    def frame_in(self, frame: Frame) -> None:
        """A frame was published."""
        self.frames_in += 1
        self.encodes += 1
        self.rows_in += frame.rows
        self.bytes_in += frame.size_bytes

    def frame_out(self, frame: Frame) -> None:
        """A frame was given to a reader."""
        self.frames_out += 1
        self.bytes_out += frame.size_bytes

    def frame_read_back(self, size_bytes: int) -> None:
        """A frame came from disk."""
        self.frames_read_back += 1
        self.bytes_read_back += size_bytes
