"""What is ended when too much of messages has come that are not whole, without a lane."""

from __future__ import annotations

from functools import partial

import pytest

from flight_server.memory import MemoryPool
from flight_server.transfer import Arriving, arriving
from flight_server.transfer.arriving import ArrivingBody
from tests.support.clocks import Clock

MIB = 1 << 20


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(arriving, "time", made)
    return made


class Bodies:
    """Some bodies, and the names of those that were ended, in order."""

    def __init__(self, names: str) -> None:
        self.ended: list[str] = []
        self.arriving = Arriving(MemoryPool(64 * MIB), message_bytes=MIB)
        self.of: dict[str, ArrivingBody] = {
            name: self.arriving.body(partial(self.ended.append, name)) for name in names
        }


def test_bodies_that_have_stopped_are_ended_above_the_limit_the_longest_first(clock: Clock) -> None:
    bodies = Bodies("abc")
    for name in "bac":
        bodies.of[name].hold(15 * MIB)
        clock.now += 0.4
    bodies.arriving.look()
    assert bodies.ended == ["b"]  # 45 MiB, and only it has been still for a second
    clock.now += 10.0
    bodies.arriving.look()
    assert bodies.ended == ["b"]  # 30 MiB are within the limit, however long they are still
    assert bodies.arriving.pool.used_bytes == 30 * MIB


def test_a_body_that_grows_slowly_is_not_ended_below_twice_the_limit(clock: Clock) -> None:
    bodies = Bodies("abcdef")
    for step in range(1, 11):
        for body in bodies.of.values():
            body.hold(step * MIB)
            clock.now += 0.1
    assert bodies.ended == []
    assert bodies.arriving.pool.used_bytes == 60 * MIB


def test_above_twice_the_limit_the_largest_is_ended_at_once(clock: Clock) -> None:
    bodies = Bodies("abc")
    bodies.of["a"].hold(20 * MIB)
    bodies.of["b"].hold(30 * MIB)
    bodies.of["c"].hold(15 * MIB)
    assert bodies.ended == ["b"]
    assert bodies.arriving.pool.used_bytes == 35 * MIB


def test_above_twice_the_limit_those_that_keep_the_room_are_ended_and_none_that_comes_at_once(
    clock: Clock,
) -> None:
    bodies = Bodies("abcdefghij")
    for name in "abcdefghi":
        bodies.of[name].hold(7 * MIB)  # 63 MiB
    for step in range(1, 11):
        clock.now += 0.9
        for name in "abcdefghi":
            bodies.of[name].hold(7 * MIB + step)
    bodies.of["j"].hold(9 * MIB)
    assert len(bodies.ended) == 2
    assert "j" not in bodies.ended


def test_a_body_that_grows_between_the_limit_and_twice_the_limit_looks_at_no_other(
    clock: Clock,
) -> None:
    bodies = Bodies("abc")
    bodies.of["a"].hold(20 * MIB)
    clock.now += 10.0
    bodies.of["b"].hold(20 * MIB)
    assert bodies.ended == []  # it ends with the next look
    bodies.arriving.look()
    assert bodies.ended == ["a"]


def test_what_has_become_whole_or_is_closed_is_not_counted() -> None:
    bodies = Bodies("ab")
    bodies.of["a"].hold(5 * MIB)
    bodies.of["b"].hold(5 * MIB)
    bodies.of["a"].hold(0)
    bodies.of["b"].close()
    assert bodies.arriving.pool.used_bytes == 0


def test_the_limit_is_at_least_one_message() -> None:
    assert Arriving(MemoryPool(64 * MIB), message_bytes=40 * MIB).limit_bytes == 40 * MIB
    assert Arriving(MemoryPool(1 << 30), message_bytes=MIB).limit_bytes == 128 * MIB
