"""What Arrow asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

_pools: list[Any] = []
"""What a block made may outlive it, and needs its pool."""


@contextmanager
def counted_memory() -> Iterator[Any]:
    """A memory pool of the block, whose ``max_memory`` is the most that Arrow had at a time, used or not."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _pools.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
