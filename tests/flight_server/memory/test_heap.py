"""What the pool has held lately stays with the process, and what is free beyond that is returned.

In processes of their own: the allocator's settings are for the whole process.
"""

from __future__ import annotations

import sys

import pytest

from tests.support.python_program import output_of

BEGIN = """
import asyncio
from flight_server.memory import Heap, MemoryPool, allocator
MIB = 1 << 20
allocator.tune(256 * MIB)
memory = MemoryPool(256 * MIB)
it = Heap(memory)

def freed(size_bytes):
    "So many bytes are free below a block that stays."
    return [bytes(1000) for _ in range(size_bytes // 1024)][-1]
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks in /proc, at glibc's allocator")


def test_what_the_start_has_freed_is_returned() -> None:
    code = """
kept = freed(64 * MIB)
before_bytes = allocator.resident_bytes()
it.start()
print((before_bytes - allocator.resident_bytes()) // MIB)
"""
    assert int(output_of(BEGIN + code)) >= 48


def test_what_the_pool_held_lately_is_kept_and_returned_later() -> None:
    code = """
it.start()
held = memory.reserve(64 * MIB)
kept = freed(64 * MIB)
before_bytes = allocator.resident_bytes()
asyncio.run(it.look())
held.free()
for looks in range(25):
    if looks in (10, 24):
        print((before_bytes - allocator.resident_bytes()) // MIB)
    asyncio.run(it.look())
"""
    early, late = map(int, output_of(BEGIN + code).split())
    assert early < 8
    assert late >= 48
