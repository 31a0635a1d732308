"""Segments in a folder of their own."""

from __future__ import annotations

import os
from pathlib import Path

from flight_server.memory.pool import MemoryPool, Reservation
from flight_server.storage.file_header import FileHeader
from flight_server.storage.folder import Folder
from flight_server.storage.segments import SegmentWriter

OWNER = "0" * 16
HEADER = FileHeader(OWNER, "d", "g", "stream", durable=False)
HEADER_BYTES = len(HEADER.encode())


def segment_writer(
    directory: Path, disk: MemoryPool | None = None, segment_bytes: int = 1 << 20
) -> SegmentWriter:
    """A writer whose segments are in this folder."""
    folder = Folder(directory, OWNER)
    return SegmentWriter(folder, HEADER, disk or MemoryPool(None), segment_bytes, dispose_now)


def dispose_now(fd: int, path: Path | None, reservation: Reservation) -> None:
    """What a server does in a thread of its own (``storage.disposal``)."""
    os.close(fd)
    if path is not None:
        path.unlink(missing_ok=True)
    reservation.free()
