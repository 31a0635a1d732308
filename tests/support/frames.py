"""Frames for tests of what only passes them on: their bytes are not Arrow's."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from flight_server.frames.message import NO_DICTIONARIES, DictionaryMessage, DictionaryState, Frame, Payload
from flight_server.memory.pool import MemoryPool, Reservation
from flight_server.protocol.checksums import crc32c
from flight_server.storage.segments import Segment, SegmentSlice

_numbers = count(1)


class _InRam(Segment):
    """A segment whose bytes are in RAM after all."""

    def __init__(self, data: bytes, *, damaged: bool, passing: bool) -> None:
        self.number = next(_numbers)
        self.path = Path(f"segment-{self.number:06}")
        self.suspect = False
        self.room: Reservation | None = None
        self._data = data
        self._passing = passing
        self._damaged = damaged

    def __del__(self) -> None:
        """There is no file to close."""

    def uncache(self, offset: int, size_bytes: int) -> None:
        self._passing = False

    def read(self, offset: int, size_bytes: int) -> bytes:
        if self._damaged or self._passing:
            return b"?" + self._data[1:]
        return self._data


def on_disk(
    data: bytes, *, damaged: bool = False, passing: bool = False, room: Reservation | None = None
) -> SegmentSlice:
    """A place where these bytes are; ``damaged`` ones come back otherwise, ``passing`` ones once."""
    segment = _InRam(data, damaged=damaged, passing=passing)
    segment.room = room
    return SegmentSlice(segment, 0, len(data))


def frame(
    data: bytes | int,
    *,
    rows: int = 1,
    pool: MemoryPool | None = None,
    dictionaries: DictionaryState = NO_DICTIONARIES,
) -> Frame:
    """A frame of these bytes, or of so many; counted in ``pool``, or in one of its own."""
    if isinstance(data, int):
        data = bytes(data)
    payload = Payload(data, (pool or MemoryPool(None)).reserve(len(data)))
    return Frame(
        rows=rows, size_bytes=len(data), crc32c=crc32c(data), payload=payload, dictionaries=dictionaries
    )


def dictionary(data: bytes, sequence: int = 0, *, pool: MemoryPool | None = None) -> DictionaryMessage:
    """A dictionary of these bytes, counted as a frame is."""
    payload = Payload(data, (pool or MemoryPool(None)).reserve(len(data)))
    return DictionaryMessage(size_bytes=len(data), crc32c=crc32c(data), payload=payload, sequence=sequence)


def spill(one: Frame, *, damaged: bool = False) -> None:
    """Move a frame to disk."""
    assert one.payload is not None
    one.move_to(on_disk(one.payload.data, damaged=damaged))
