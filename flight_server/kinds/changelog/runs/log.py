"""Log: the file to which a changelog appends commits before it acknowledges them.

Format
    ``log-000001`` and so on. Numbers are little-endian. Entries follow each other without gaps::

        4 bytes   magic, "CLE1"
        u32       length of the header
        u64       length of the body
        u32       CRC-32C of header and body
        header    UTF-8 JSON, see ``journal``
        body      an encapsulated IPC record batch (see ``run_files``), or nothing

Validity
    An entry is valid if it is whole and its CRC is right. Entries count up to the first one that is not valid. That is
    a torn tail if the file ends before the entry does and no valid entry follows: its writer was killed before it
    acknowledged the entry. Else the log is damaged. (A crash leaves the beginning of an append, because a file system
    that orders data before sizes does not make a file longer than its written bytes.)

Algorithm of a reader
    1. Read the entries of each log in the order of their numbers. Only the last log may have a torn tail.
    2. Cut the torn tail off before anything is appended.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flight_server.memory import Reservation
from flight_server.protocol.checksums import crc32c
from flight_server.records import DiskTrouble, trouble_with
from flight_server.storage import read_regular, sync_directory, sync_file

from .run import Damaged

MAGIC: Final = b"CLE1"

_HEAD = struct.Struct("<4sIQI")


@dataclass(frozen=True)
class LogEntry:
    """One entry."""

    header: dict[str, Any]
    body: bytes

    def encode(self) -> list[bytes]:
        header = json.dumps(self.header, separators=(",", ":")).encode()
        checksum = crc32c(self.body, crc32c(header))
        return [_HEAD.pack(MAGIC, len(header), len(self.body), checksum), header, self.body]


class LogFile:
    """The log that takes appends. ``room``: of the disk pool; grows before each append."""

    def __init__(self, path: Path, room: Reservation, size_bytes: int = 0) -> None:
        self.path = path
        self.room = room
        self.size_bytes = size_bytes
        self.suspect = False
        if room.size_bytes < size_bytes:
            room.grow(size_bytes - room.size_bytes)

    def append(self, entries: Sequence[LogEntry], *, of_kept: float = 0.0) -> None:
        """Write the entries to the medium, all or none. Blocks. One call at a time.

        Args:
            of_kept: the share that they may take of the disk pool's kept bytes (``memory.pool``).

        Raises:
            DiskTrouble: none of them is there. If they could not be cut off either, the log is ``suspect``: after a
                restart they may be there. The next append tries first to cut them off.
        """
        parts = [part for entry in entries for part in entry.encode()]
        size_bytes = sum(map(len, parts))
        if self.suspect:
            self._cut_back()
        if self.suspect:
            raise DiskTrouble(f"{self.path} could not be cut back after an error", full=False)
        if not self.room.try_grow(size_bytes, of_kept=of_kept):
            raise DiskTrouble(
                f"the disk limit leaves no room for {size_bytes} bytes of {self.path}", full=True
            )
        try:
            self._write(b"".join(parts))
        except OSError as error:
            self._cut_back()
            self.room.shrink(size_bytes)
            raise trouble_with(self.path, error) from error
        self.size_bytes += size_bytes

    def _write(self, data: bytes) -> None:
        new = self.size_bytes == 0
        # Only the first append makes the file: one that was deleted by a drop must not come back.
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if new else 0)
        fd = os.open(self.path, flags, 0o600)
        try:
            rest, offset = memoryview(data), self.size_bytes
            while rest:
                written = os.pwrite(fd, rest, offset)
                rest, offset = rest[written:], offset + written
            os.fdatasync(fd)
        finally:
            os.close(fd)
        if new:
            sync_directory(self.path.parent)

    def _cut_back(self) -> None:
        self.suspect = False
        try:
            if self.path.exists():
                os.truncate(self.path, self.size_bytes)
                sync_file(self.path)
        except OSError:
            self.suspect = True

    def delete(self) -> None:
        """Delete the file and give its bytes back. Blocks. Twice is fine."""
        self.path.unlink(missing_ok=True)
        self.room.free()


def read_log(path: Path) -> tuple[list[LogEntry], int, bool]:
    """The valid entries, their length in bytes, and whether something follows them (a torn tail). Blocks.

    Raises:
        Damaged: see "Validity".
        NotAFile, OSError: see :func:`~flight_server.storage.read_regular`.
    """
    data = read_regular(path)
    entries: list[LogEntry] = []
    offset = 0
    while (found := _entry_at(data, offset)) is not None:
        entry, offset = found
        entries.append(entry)
    if _is_whole(data, offset):
        raise Damaged(f"{path.name} is damaged at byte {offset}: the entry there has another checksum")
    follows = data.find(MAGIC, offset + 1) if offset < len(data) else -1
    while follows >= 0:
        if _entry_at(data, follows) is not None:
            raise Damaged(f"{path.name} is damaged at byte {offset}: entries follow there that are whole")
        follows = data.find(MAGIC, follows + 1)
    return entries, offset, offset < len(data)


def _is_whole(data: bytes, offset: int) -> bool:
    if offset + _HEAD.size > len(data):
        return False
    magic, header_bytes, body_bytes, _ = _HEAD.unpack_from(data, offset)
    return bool(magic == MAGIC and offset + _HEAD.size + header_bytes + body_bytes <= len(data))


def _entry_at(data: bytes, offset: int) -> tuple[LogEntry, int] | None:
    if not _is_whole(data, offset):
        return None
    _, header_bytes, body_bytes, checksum = _HEAD.unpack_from(data, offset)
    start = offset + _HEAD.size
    end = start + header_bytes + body_bytes
    header, body = data[start : start + header_bytes], data[start + header_bytes : end]
    if crc32c(body, crc32c(header)) != checksum:
        return None
    try:
        said = json.loads(header)
    except (ValueError, RecursionError):
        return None
    return (LogEntry(said, body), end) if isinstance(said, dict) else None
