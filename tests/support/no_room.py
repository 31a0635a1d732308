"""A disk without room, for this process: no file that it writes can have more than one byte.

The kernel refuses (EFBIG), whichever library writes, so a test that uses it knows nothing of formats and calls. Limits:
what a file had before can be overwritten and deleted; the error is not ENOSPC, so the server does not call it a full
disk; captured output is a file, too, so the code inside must log nothing.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_room() -> Iterator[None]:
    """Inside, each write that would make a file longer fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
