"""The most memory that Arrow has at once while a test's block runs, without numpy's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_pools: list[pa.MemoryPool] = []
"""For as long as the process: memory is given back to its pool, and a batch may outlive the block."""


@contextmanager
def arrow_peak() -> Iterator[pa.MemoryPool]:
    """A pool for all that the block allocates; its ``max_memory()`` begins at 0."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _pools.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
