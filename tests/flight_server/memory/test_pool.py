"""MemoryPool and Reservation: exact sums, limits, first come first served, freed with the last reference."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flight_server.memory.pool import FRESH_SECONDS, MemoryPool, Request, Reservation
from tests.support.examples import examples


def test_shrinking_or_splitting_more_than_is_held_is_an_error_and_changes_nothing() -> None:
    pool = MemoryPool(100)
    held = pool.reserve(10)
    with pytest.raises(ValueError, match="cannot shrink"):
        held.shrink(11)
    with pytest.raises(ValueError, match="cannot split"):
        held.split(11)
    assert pool.used_bytes == held.size_bytes == 10


def test_what_asks_later_does_not_overtake_a_request_that_waits() -> None:
    pool, granted = MemoryPool(100), list[Reservation]()
    held = pool.reserve(60)
    waiting = pool.request(50, granted.append)
    assert pool.try_reserve(10) is None
    waiting.cancel()
    assert pool.try_reserve(10) is not None
    pool.request(50, granted.append)
    held.free()
    assert [each.size_bytes for each in granted] == [50]


def test_a_callback_may_use_the_pool() -> None:
    pool = MemoryPool(10)
    sizes: list[int] = []

    def again(reservation: Reservation) -> None:
        sizes.append(reservation.size_bytes)
        if len(sizes) < 5:
            pool.request(10, again)

    pool.request(10, again)
    assert sizes == [10] * 5
    assert pool.used_bytes == 0


def test_bytes_freed_by_a_finalizer_while_the_queue_is_served_grant_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = MemoryPool(10)
    granted: list[tuple[str, Reservation]] = []
    held, garbage = pool.reserve(5), [pool.reserve(5)]
    for name in ("first", "second"):
        pool.request(5, lambda reservation, name=name: granted.append((name, reservation)))  # type: ignore[misc]
    fits = MemoryPool._fits_here

    def fits_with_a_collection(self: MemoryPool, size_bytes: int) -> bool:
        answer = fits(self, size_bytes)
        garbage.clear()  # as if the collector ran here, in the middle of serving
        return answer

    monkeypatch.setattr(MemoryPool, "_fits_here", fits_with_a_collection)
    held.free()
    assert {name for name, _ in granted} == {"first", "second"}
    assert pool.used_bytes == pool.peak_bytes == 10


def test_what_a_part_grants_fits_its_limit_and_the_pools() -> None:
    pool = MemoryPool(10)
    part = pool.part("part", 4)
    held = part.try_reserve(4)
    assert part.try_reserve(1) is None
    rest = pool.try_reserve(6)
    assert held is not None
    assert rest is not None
    held.shrink(2)
    assert (part.used_bytes, pool.used_bytes, pool.peak_bytes) == (2, 8, 10)
    assert part.try_reserve(3) is None


def test_what_a_pool_keeps_is_for_those_who_say_so_and_each_takes_its_share_of_it() -> None:
    pool = MemoryPool(80)
    pool.kept_parts = 8
    writer, merge, hold = pool.empty(), pool.empty(), pool.empty()
    assert writer.try_grow(70)
    assert not writer.try_grow(1)
    assert not merge.try_grow(6, of_kept=0.5)
    assert merge.try_grow(5, of_kept=0.5)
    assert not merge.try_grow(1, of_kept=0.5)
    assert hold.try_grow(5, of_kept=1.0)
    assert not hold.try_grow(1, of_kept=1.0)
    pool.kept_parts = None
    hold.free()
    assert writer.try_grow(5)


def test_a_full_part_keeps_nothing_from_those_who_wait_for_the_pool() -> None:
    pool = MemoryPool(10)
    part = pool.part("part", 4)
    stuck, held = part.reserve(4), pool.reserve(6)
    granted: list[tuple[str, Reservation]] = []
    for name, asked in (("part", part), ("pool", pool)):
        asked.request(3, lambda reservation, name=name: granted.append((name, reservation)))  # type: ignore[misc]
    held.free()
    assert [name for name, _ in granted] == ["pool"]
    # Nor does what waits for a full part keep others from taking what is free at once.
    assert pool.try_reserve(1) is not None
    stuck.free()
    assert [name for name, _ in granted] == ["pool", "part"]


def test_in_a_part_the_newest_and_the_oldest_are_served_by_turns_and_an_eighth_is_for_those_who_just_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("flight_server.memory.pool.time.monotonic", lambda: now)
    part = MemoryPool(100).part("part", 8)
    held = [part.reserve(1) for _ in range(8)]
    granted: list[tuple[str, Reservation]] = []

    def ask(name: str) -> None:
        part.request(1, lambda reservation: granted.append((name, reservation)))

    for name in ("a", "b", "c", "d", "e"):
        ask(name)
    for _ in range(3):
        held.pop()
    assert [name for name, _ in granted] == ["e", "a", "d"]
    now = FRESH_SECONDS + 0.5
    held.pop()
    part.request(1, lambda reservation: granted.append(("comes again", reservation)), fresh=False)
    assert len(granted) == 3
    ask("just came")
    assert [name for name, _ in granted][3:] == ["just came"]
    held.pop()
    assert len(granted) == 4
    held.pop()
    assert len(granted) == 5


def test_an_exchange_is_served_before_those_who_wait_or_leaves_everything_to_them() -> None:
    pool = MemoryPool(10)
    held = pool.reserve(10)
    granted: list[Reservation] = []
    pool.request(4, granted.append)
    kept = pool.exchange(held.free, 8)
    assert (kept is not None, granted, pool.used_bytes, pool.peak_bytes) == (True, [], 8, 10)
    assert kept is not None
    assert pool.exchange(kept.free, 11) is None
    assert sum(each.size_bytes for each in granted) == 4


class PoolMachine(RuleBasedStateMachine):
    """The pool against a list of sizes."""

    @initialize(limit_bytes=st.integers(1, 50))
    def start(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.pool = MemoryPool(limit_bytes)
        self.held: list[Reservation] = []
        self.waiting: list[Request] = []
        self.order: list[int] = []
        self.asked = 0

    @rule(size=st.integers(0, 60))
    def try_reserve(self, size: int) -> None:
        fits = not self.pool.waiting and self.pool.used_bytes + size <= self.limit_bytes
        reservation = self.pool.try_reserve(size)
        assert (reservation is not None) == fits
        if reservation is not None:
            self.held.append(reservation)

    @rule(size=st.integers(0, 60))
    def request(self, size: int) -> None:
        number = self.asked
        self.asked += 1

        order, held = self.order, self.held

        def granted(reservation: Reservation) -> None:
            order.append(number)
            held.append(reservation)

        self.waiting.append(self.pool.request(size, granted))

    @rule(size=st.integers(0, 60))
    def force(self, size: int) -> None:
        self.held.append(self.pool.reserve(size))

    @rule(data=st.data())
    def free_one(self, data: st.DataObject) -> None:
        if self.held:
            del self.held[data.draw(st.integers(0, len(self.held) - 1))]

    @rule(data=st.data())
    def shrink_one(self, data: st.DataObject) -> None:
        if self.held:
            # By index: hypothesis would keep a drawn reservation alive.
            index = data.draw(st.integers(0, len(self.held) - 1))
            self.held[index].shrink(data.draw(st.integers(0, self.held[index].size_bytes)))

    @rule(data=st.data())
    def cancel_one(self, data: st.DataObject) -> None:
        if self.waiting:
            self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1))).cancel()

    @invariant()
    def the_sum_is_exact(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.used_bytes == sum(reservation.size_bytes for reservation in self.held)
            assert self.pool.peak_bytes >= self.pool.used_bytes

    @invariant()
    def no_request_overtakes(self) -> None:
        if hasattr(self, "pool"):
            assert self.order == sorted(self.order)

    @invariant()
    def no_request_waits_for_what_is_there(self) -> None:
        if hasattr(self, "pool"):
            first = next((request for request in self.waiting if request.state == "waiting"), None)
            if first is not None:
                assert self.pool.used_bytes > 0
                assert self.pool.used_bytes + first.size_bytes > self.limit_bytes

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for request in self.waiting:
                request.cancel()
            self.waiting.clear()
            self.held.clear()
            assert self.pool.used_bytes == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=examples(1), stateful_step_count=40)
