"""Frames for tests of what only passes them on: their bytes are not Arrow's."""

from __future__ import annotations

from flight_server.checksums import crc32c
from flight_server.frames import NO_DICTIONARIES, DictionaryState, Frame, Payload
from flight_server.memory import MemoryPool


class OnDisk:
    """A slice whose bytes are in RAM after all; ``damaged`` ones come back otherwise, ``passing`` ones once."""

    def __init__(self, data: bytes, *, damaged: bool = False, passing: bool = False) -> None:
        self._data = data
        self._passing = passing
        self._damaged = damaged

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def read(self, *, anew: bool = False) -> bytes:
        if self._damaged or (self._passing and not anew):
            return b"?" + self._data[1:]
        return self._data


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


def spill(one: Frame, *, damaged: bool = False) -> None:
    """Move a frame to disk."""
    assert one.payload is not None
    one.move_to(OnDisk(one.payload.data, damaged=damaged))
