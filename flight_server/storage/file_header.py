"""FileHeader: the first bytes of each file in the folder say what dataset the server made it for.

For people, and for a start whose records are damaged: it names in the quarantine what it cannot serve, and keeps its
files. Nothing else reads it: the records say what a file holds.

Format
    8 bytes ``FLSHDAT1``, the length of the JSON and its CRC-32C (u32 each, little-endian), the JSON: an object with
    ``owner``, ``dataset``, ``generation``, ``kind`` and ``durable``.
"""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from flight_server.protocol.checksums import crc32c

from .disk_files import NotAFile, open_regular

MAGIC: Final = b"FLSHDAT1"
_PREFIX = struct.Struct("<8sII")
_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a file was made for. ``durable``: whether the records may have named the file."""

    owner: str
    dataset: str
    generation: str
    kind: str
    durable: bool

    def encode(self) -> bytes:
        body = json.dumps(asdict(self)).encode()
        return _PREFIX.pack(MAGIC, len(body), crc32c(body)) + body


def read_header(path: Path) -> FileHeader | None:
    """The file's header; None if there is no valid one. Blocks. Raises OSError: the disk does not give it."""
    try:
        fd = open_regular(path)
    except (FileNotFoundError, NotAFile):
        return None
    try:
        data = os.pread(fd, _MOST_BYTES, 0)
    finally:
        os.close(fd)
    if len(data) < _PREFIX.size:
        return None
    magic, length, checksum = _PREFIX.unpack_from(data)
    body = data[_PREFIX.size : _PREFIX.size + length]
    if magic == MAGIC and len(body) == length and crc32c(body) == checksum:
        with suppress(ValueError, TypeError, RecursionError):
            return FileHeader(**json.loads(body))
    return None
