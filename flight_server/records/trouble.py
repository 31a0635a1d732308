"""What the disk or another version does to files: errors of all rooms that read and write them."""

from __future__ import annotations

import errno
from pathlib import Path


class DiskTrouble(Exception):
    """The disk refused to take or give bytes. ``full``: for lack of room, by its own error or the disk limit."""

    def __init__(self, message: str, *, full: bool) -> None:
        super().__init__(message)
        self.full = full


class OtherFormat(OSError):
    """Another version of this server wrote it."""


def trouble_with(path: Path, error: OSError) -> DiskTrouble:
    """The system's error about a path."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return DiskTrouble(f"{path}: {error.strerror or error}", full=full)
