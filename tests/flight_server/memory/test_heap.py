"""Memory is populated ahead of a pool that grows, never past its limit, and returned when it is free.

In processes of their own: the allocator's settings are for the whole process.
"""

from __future__ import annotations

import sys

import pytest

from flight_server.memory import Heap, MemoryPool
from flight_server.memory import heap as heap_module
from flight_server.memory.allocator import populate
from tests.support.polling import eventually
from tests.support.python_program import output_of

MIB = 1 << 20
BEGIN = """
import ctypes
from flight_server.memory import Heap, MemoryPool, allocator
from tests.support.polling import eventually
MIB = 1 << 20
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def resident_share(count):
    "Of the next so many blocks of 1 MiB, by mincore; nothing is written to them."
    pages = resident = 0
    seen = ctypes.create_string_buffer(256)
    for _ in range(count):
        start = (libc.malloc(MIB) + 4095) // 4096 * 4096
        assert libc.mincore(ctypes.c_void_p(start), 255 * 4096, seen) == 0
        pages += 255
        resident += sum(byte & 1 for byte in seen.raw[:255])
    return resident / pages

def heap(limit_bytes):
    memory = MemoryPool(limit_bytes)
    return memory, Heap(memory, tuned=allocator.tune(limit_bytes))
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or populate(MIB, huge=False) is None, reason="this system cannot populate memory"
)


@pytest.mark.parametrize(
    "huge",
    [pytest.param(False, id="small pages"), pytest.param(True, id="huge pages", marks=pytest.mark.long)],
)
def test_what_is_allocated_after_populating_is_resident_before_it_is_written_to(huge: bool) -> None:
    code = f"""
allocator.tune(1 << 30)
print(resident_share(64))
allocator.populate(128 * MIB, huge={huge})
print(resident_share(100))
"""
    before, after = (float(share) for share in output_of(BEGIN + code).split())
    assert before < 0.2
    assert after > 0.9


def test_a_pool_that_grows_has_its_next_memory_populated() -> None:
    code = """
memory, grows = heap(1 << 30)
grows.start()
held = memory.reserve(grows.lead_bytes // 4)
eventually(lambda: grows.populated_bytes > grows.lead_bytes * 3 // 4, True)
print(resident_share(grows.lead_bytes // MIB * 3 // 4))
grows.stop()
"""
    assert float(output_of(BEGIN + code)) > 0.9


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param("memory.reserve({})", id="pool"),
        pytest.param("b'x' * {}", id="process", marks=pytest.mark.long),
    ],
)
def test_nothing_is_populated_in_the_last_quarter_of_the_limit(taken: str) -> None:
    """Neither for a pool that comes there, nor in a process that has taken its share for something else."""
    code = f"""
memory, grows = heap(256 * MIB)
taken = {taken.format("(192 * MIB - grows.lead_bytes + MIB)")}
for _ in range(2):
    before = allocator.resident_bytes()
    grows.extend()
    print((allocator.resident_bytes() - before) // MIB)
    taken = None
    allocator.give_back()
"""
    past, within = (int(grown) for grown in output_of(BEGIN + code).split())
    assert past == 0
    assert 16 <= within <= 32


def test_what_was_populated_and_not_needed_is_returned() -> None:
    code = """
memory, grows = heap(1 << 30)
settled = allocator.resident_bytes()
grows.extend()
print(allocator.resident_bytes() - settled > grows.lead_bytes // 2)
for _ in range(25):
    grows.look()
print(allocator.resident_bytes() - settled < grows.lead_bytes // 4, grows.populated_bytes < grows.lead_bytes // 4)
"""
    assert output_of(BEGIN + code).split() == ["True"] * 3


def test_what_the_start_has_freed_is_returned() -> None:
    code = """
memory, it = heap(256 * MIB)
blocks = [bytes(1000) for _ in range(64 * 1024)]
del blocks[:-1]  # the last one lies above the hole
before = allocator.resident_bytes()
it.start()
print((before - allocator.resident_bytes()) // MIB)
it.stop()
"""
    assert int(output_of(BEGIN + code)) >= 48


def test_a_server_too_small_for_it_and_a_process_that_is_not_tuned_populate_nothing() -> None:
    assert Heap(MemoryPool(64 * MIB), tuned=True).lead_bytes == 0
    assert Heap(MemoryPool(1 << 30), tuned=False).lead_bytes == 0


def test_an_unexpected_error_does_not_end_the_thread_that_gives_memory_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0

    def fails(self: Heap) -> None:
        nonlocal looks
        looks += 1
        raise RuntimeError("unexpected")

    monkeypatch.setattr(Heap, "look", fails)
    monkeypatch.setattr(heap_module, "LOOK_SECONDS", 0.01)
    heap = Heap(MemoryPool(256 * MIB), tuned=False)
    heap.start()
    eventually(lambda: looks >= 2, True)
    heap.stop()
    assert "unexpected" in caplog.text
