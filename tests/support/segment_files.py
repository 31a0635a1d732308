"""Segments in a folder of their own."""

from __future__ import annotations

from pathlib import Path

from flight_server.memory.pool import MemoryPool
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
    return SegmentWriter(Folder(directory, OWNER), HEADER, disk or MemoryPool(None), segment_bytes)
