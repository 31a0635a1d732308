"""A tally counts some of a pool's bytes, and changes nothing of who gets them."""

from __future__ import annotations

import pytest

from flight_server.memory import MemoryPool, Tally


def test_what_a_tally_takes_counts_once_in_the_pool_until_it_is_freed() -> None:
    memory = MemoryPool(100)
    pool = memory.account("frames", 50)
    mine, others = Tally(pool, "mine"), Tally(pool, "others")
    room = pool.reserve(30)
    mine.take(room)
    others.take(pool.reserve(5))  # freed at once: nothing holds it
    assert [each.used_bytes for each in (mine, others, pool, memory)] == [30, 0, 30, 30]
    part = room.split(10)
    room.free()
    assert [each.used_bytes for each in (mine, pool, memory)] == [10, 10, 10]
    part.free()
    assert [each.used_bytes for each in (mine, pool, memory)] == [0, 0, 0]
    with pytest.raises(ValueError, match="is none of frames"):
        mine.take(memory.reserve(1))
