"""RunBytes: reads parts of a run file, whose format ``run_files`` has. All functions block."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from flight_server.protocol.checksums import crc32c
from flight_server.storage import open_regular, trouble_with

from .run import Damaged

MAGIC: Final = b"FLSHRUN1"

_TAIL = struct.Struct("<QI8s")


def encode_tail(footer: bytes) -> bytes:
    """The bytes behind a footer."""
    return _TAIL.pack(len(footer), crc32c(footer), MAGIC)


def read_at(fd: int, path: Path, offset: int, size_bytes: int) -> bytes:
    """So many bytes of an open file. Raises Damaged if it is shorter; OSError."""
    data = os.pread(fd, size_bytes, offset)
    while len(data) < size_bytes:
        more = os.pread(fd, size_bytes - len(data), offset + len(data))
        if not more:
            raise Damaged(f"{path.name} ends before byte {offset + size_bytes}")
        data += more
    return data


def map_file(path: Path) -> pa.Buffer:
    """A file's bytes, mapped. Raises OSError."""
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def read_footer(path: Path) -> dict[str, Any]:
    """A run file's footer, with the file's ``size_bytes``. Raises Damaged, NotAFile, OSError."""
    fd = open_regular(path)
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes < len(MAGIC) + _TAIL.size:
            raise Damaged(f"{path.name} has {size_bytes} bytes, which are too few")
        length, checksum, magic = _TAIL.unpack(read_at(fd, path, size_bytes - _TAIL.size, _TAIL.size))
        start = size_bytes - _TAIL.size - length
        if magic != MAGIC or start < len(MAGIC) or read_at(fd, path, 0, len(MAGIC)) != MAGIC:
            raise Damaged(f"{path.name} does not begin or end as a run does")
        footer = read_at(fd, path, start, length)
    finally:
        os.close(fd)
    if crc32c(footer) != checksum:
        raise Damaged(f"the footer of {path.name} has another checksum")
    try:
        found = json.loads(footer)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the footer of {path.name} is not JSON") from error
    if not isinstance(found, dict):
        raise Damaged(f"the footer of {path.name} is not an object")
    return {**found, "size_bytes": size_bytes}


class on_disk:  # noqa: N801  # used as a statement
    """Turns OSError into DiskTrouble."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise trouble_with(self._path, error) from error
