"""Small files and directories: read without hanging, written so that they survive a crash. All functions block.

None follows a symbolic link at the end of a file's path or waits for a FIFO: a directory may hold files of others.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_READ_BYTES = 1 << 24


class NotAFile(Exception):
    """The path leads to something else than a regular file, a link included."""


def is_real_directory(path: Path) -> bool:
    """Whether it is a directory and no link; False if it may not be looked at."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, PermissionError):
        return False


def open_regular(path: Path) -> int:
    """A descriptor for reading a regular file. Raises NotAFile; OSError if it is missing or cannot be opened."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise NotAFile(f"{path.name} is not a regular file")
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def read_regular(path: Path) -> bytes:
    """A regular file's bytes. Raises as :func:`open_regular`."""
    fd = open_regular(path)
    try:
        parts: list[bytes] = []
        while part := os.pread(fd, _READ_BYTES, sum(map(len, parts))):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)


def sync_directory(path: Path) -> None:
    """The directory's entries are on the medium; after an OSError they may not be."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes) -> None:
    """Write a file's bytes to the medium; the name is there once its directory is synced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)
