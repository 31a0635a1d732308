"""Board: a note from each of some processes that are forked from one, in memory that they share.

Guarantee: a note is read as it was written, or not at all, with its age. Neither a writer nor a reader waits for
another process, also for one that is stopped, or was killed while it wrote.
"""

from __future__ import annotations

import mmap
import struct
import time
import zlib

_SLOT_BYTES = 4096
_HEAD = struct.Struct("<IId")
"""CRC-32 of what follows, the note's bytes, and when it was written, by the host's monotonic clock."""
MAX_NOTE_BYTES = _SLOT_BYTES - _HEAD.size
_TRIES = 3


class Board:
    """Made before the fork. ``slots``: how many processes there are; each writes the slot of its number."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._memory = mmap.mmap(-1, slots * _SLOT_BYTES)

    def write(self, slot: int, note: bytes) -> None:
        """Replace the slot's note; an empty one is none. Raises ValueError: above ``MAX_NOTE_BYTES``."""
        if len(note) > MAX_NOTE_BYTES:
            raise ValueError(f"a note of {len(note)} bytes")
        head = _HEAD.pack(0, len(note), time.monotonic())
        sealed = struct.pack("<I", zlib.crc32(note, zlib.crc32(head[4:]))) + head[4:] + note
        self._memory[slot * _SLOT_BYTES : slot * _SLOT_BYTES + len(sealed)] = sealed

    def read(self) -> list[tuple[bytes, float]]:
        """The notes that there are, in the order of the slots, and the age of each in seconds."""
        return [note for slot in range(self._slots) if (note := self._note(slot)) is not None]

    def _note(self, slot: int) -> tuple[bytes, float] | None:
        for _ in range(_TRIES):  # it may be written just now
            data = self._memory[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES]
            crc32, size_bytes, written_at = _HEAD.unpack_from(data)
            end = _HEAD.size + size_bytes
            if size_bytes <= MAX_NOTE_BYTES and zlib.crc32(data[4:end]) == crc32:
                return (data[_HEAD.size : end], time.monotonic() - written_at) if size_bytes else None
        return None
