"""A tally counts some of a pool's bytes, and changes nothing of who gets them."""

from __future__ import annotations

import pytest

from flight_server.memory import MemoryPool, Reservation, Tally


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


def test_the_pools_limit_counts_for_a_tally() -> None:
    pool = MemoryPool(50)
    tally = Tally(pool, "mine")
    room = tally.empty()
    assert room.try_grow(50)
    assert tally.available_bytes == 0
    assert not room.try_grow(1)
    room.free()
    assert tally.available_bytes == 50


def test_bytes_that_a_tally_gives_back_go_to_the_requests_of_the_pool() -> None:
    pool = MemoryPool(50)
    tally = Tally(pool, "mine")
    room = pool.reserve(50)
    tally.take(room)
    granted: list[Reservation] = []
    request = pool.request(20, granted.append)
    assert granted == []
    room.free()
    assert [each.size_bytes for each in granted] == [20]
    request.cancel()
