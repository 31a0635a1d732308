"""How long Arrow's allocator, mimalloc, keeps freed pages; by default it returns them to the system after a second.

**The server** returns them at once. Otherwise merges of one large key, one after the other, took 200 MiB of resident
memory; they take 120, in the same time. The frames that a client sends are not in this memory.

**A Python worker** keeps them for its next batches and tasks, which take as much again: a fresh page costs more than
the copy into it: measured once, in turn with a delay of a second, two stages and an exchange of 10 M rows from Parquet
took 2.5 CPU seconds instead of 2.9.
"""

from __future__ import annotations

import os

_PURGE_DELAY = "MIMALLOC_PURGE_DELAY"


def load_arrow(kept_milliseconds: int) -> None:
    """Import Arrow, whose allocator then keeps freed pages for so long. It reads its settings when it is loaded, so
    nothing may have imported Arrow before. A value that the user has set stays; what other processes inherit is not
    changed.
    """
    is_ours = _PURGE_DELAY not in os.environ
    if is_ours:
        os.environ[_PURGE_DELAY] = str(kept_milliseconds)
    import pyarrow as pa  # noqa: F401, PLC0415  # only so that mimalloc reads it now

    if is_ours:
        del os.environ[_PURGE_DELAY]
