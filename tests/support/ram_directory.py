"""A new directory in RAM, where the host has one: for tests that are about states, not about the disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def ram_directory() -> Iterator[Path]:
    """One that no other process knows, deleted at the end; without ``/dev/shm`` a directory for temporary files."""
    shared = Path("/dev/shm")  # mkdtemp makes a new directory in it
    path = Path(tempfile.mkdtemp(prefix="changelog-", dir=shared if shared.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)
