"""Counters of one server."""

from __future__ import annotations

from dataclasses import dataclass, field

RELOADED = ("tls", "tokens")


@dataclass
class Counters:
    """Counted since the start; they only grow."""

    puts: int = 0
    gets: int = 0
    frames_in: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    frames_out: int = 0
    bytes_out: int = 0
    # Batches encoded by producers or sources. Readers are sent those bytes, so this equals frames_in.
    encodes: int = 0
    # Messages made of several small frames, each for all readers that were sent it meanwhile.
    joins: int = 0
    frames_read_back: int = 0
    bytes_read_back: int = 0
    readers_ended_as_too_slow: int = 0
    # Of the partitions of source datasets.
    pulls: int = 0
    pulls_failed: int = 0
    datasets_expired: int = 0
    # Objects of exchanges.
    offloads: int = 0
    offloads_failed: int = 0
    offloaded_bytes: int = 0
    # Calls that were refused or failed, by the error's code.
    errors: dict[str, int] = field(default_factory=dict)
    # Files that were changed and could not be read again, such as the certificate; the earlier content stays.
    reloads_failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RELOADED, 0))

    def reload_failed(self, file: str) -> None:
        """Count a refusal of one of ``RELOADED``."""
        self.reloads_failed[file] += 1

    def batch_in(self, rows: int, size_bytes: int) -> None:
        self.frames_in += 1
        self.encodes += 1
        self.rows_in += rows
        self.bytes_in += size_bytes

    def frames_sent(self, frames: int, size_bytes: int) -> None:
        self.frames_out += frames
        self.bytes_out += size_bytes

    def frame_read_back(self, size_bytes: int) -> None:
        self.frames_read_back += 1
        self.bytes_read_back += size_bytes
