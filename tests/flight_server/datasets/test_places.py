"""Places: a reader with a name counts once, however often its connection breaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.concurrency.broadcast_queue import Subscription
from flight_server.datasets.places import PLACE_BYTES, RANGE_BYTES, Places
from flight_server.memory import MemoryPool, Metadata
from flight_server.protocol.errors import Conflict, InvalidRequest, OutOfBudget
from tests.support.queues import kept_queue, take_one

ITEMS = 10


class Rig:
    """A queue of ten items that go when two readers have passed them."""

    def __init__(self) -> None:
        self.queue = kept_queue(2)
        for number in range(ITEMS):
            self.queue.publish(number, 1)
        self.places = Places(self.queue)

    def comes(
        self, reader: str, start: int = 0, now: float = 0.0, stop: int | None = None
    ) -> Subscription[int]:
        subscription = self.queue.subscribe(start, stop)
        self.places.take(reader, subscription, now)
        return subscription

    def leaves(self, reader: str, subscription: Subscription[int], until: float) -> None:
        subscription.close()
        self.places.leave(reader, subscription, until)


def test_a_resume_acknowledges_what_comes_before_it_and_counts_nothing_twice() -> None:
    rig = Rig()
    rig.places.expire(0)
    one = rig.comes("one")
    rig.places.acknowledge("one", 3, now=0)
    rig.leaves("one", one, until=60)
    rig.comes("one", 5, now=59)
    assert rig.queue.first == 0, "one reader has passed five items, two are wanted"
    rig.queue.passed(0, ITEMS)
    assert rig.queue.first == 5
    rig.places.acknowledge("one", 5, now=1000)
    assert rig.queue.first == 5


def test_who_comes_under_a_name_in_use_takes_over() -> None:
    rig = Rig()
    before = rig.comes("one")
    assert take_one(before) == 0
    after = rig.comes("one", 1)
    with pytest.raises(Conflict, match="reader 'one' has gone on in another connection"):
        take_one(before)
    rig.places.leave("one", before, until=0)  # it has lost its place to the other one
    assert take_one(after) == 1
    rig.places.acknowledge("one", 2, now=1000)


def test_a_reader_that_is_tried_again_long_after_it_had_every_frame_counts_once() -> None:
    rig = Rig()
    rig.queue.close()
    for now in (0, 3600, 7200):
        again = rig.comes("task 3", now=now)
        rig.places.acknowledge("task 3", ITEMS, now=now)
        rig.leaves("task 3", again, until=now + 60)
        assert rig.queue.first == 0, "two readers are wanted, and it is one"
    rig.comes("other", now=9000)
    rig.places.acknowledge("other", ITEMS, now=9000)
    assert rig.queue.first == ITEMS


def test_a_reader_cannot_acknowledge_frames_beyond_the_range_that_it_asked_for_last() -> None:
    rig = Rig()
    rig.queue.passed(0, ITEMS)
    rig.comes("one", 5, stop=8)
    rig.places.acknowledge("one", 8, now=0)
    rig.comes("one", 0, stop=3)
    with pytest.raises(InvalidRequest, match="'one' acknowledges 8, and has asked for the frames before 3"):
        rig.places.acknowledge("one", 8, now=0)  # sent again, too late
    rig.places.acknowledge("one", 3, now=0)
    assert take_one(rig.comes("one", 3, stop=5)) == 3


def test_a_reader_that_asks_for_what_is_to_come_has_not_had_what_comes_before_it() -> None:
    queue = kept_queue(1)
    rig = Rig()
    rig.queue, rig.places = queue, Places(queue)
    queue.publish(0, 1)
    one = rig.comes("one")
    assert take_one(one) == 0
    rig.comes("one", 3)
    for number in range(1, 5):
        queue.publish(number, 1)
    rig.places.acknowledge("one", 5, now=0)
    assert queue.first == 0, "it had frame 0 at most, and has not said so"
    rig.comes("one", 0, stop=3)
    rig.places.acknowledge("one", 3, now=0)
    assert queue.first == 5


def test_a_range_that_was_left_early_is_given_back_and_completed_ones_are_not() -> None:
    rig = Rig()
    rig.comes("one", 0, stop=4)
    rig.places.acknowledge("one", 4, now=0)
    early = rig.comes("one", 2, stop=9)
    rig.places.acknowledge("one", 7, now=0)
    rig.leaves("one", early, until=60)
    rig.places.expire(60)
    rig.queue.passed(0, ITEMS)
    assert rig.queue.first == 4
    rig.comes("one", 0 + rig.queue.first, now=61)
    rig.places.acknowledge("one", ITEMS, now=61)
    assert rig.queue.first == ITEMS


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, ITEMS), st.integers(0, ITEMS), st.integers(0, ITEMS)
        ),
        max_size=30,
    )
)
def test_an_item_goes_when_two_names_have_had_it_whatever_they_repeat(
    steps: list[tuple[str, int, int, int]],
) -> None:
    rig = Rig()
    had: list[set[str]] = [set() for _ in range(ITEMS)]
    for reader, wanted, length, acknowledged in steps:
        first = next((index for index, names in enumerate(had) if len(names) < 2), ITEMS)
        assert rig.queue.first == first
        start = max(wanted, first)
        stop = start + length
        rig.comes(reader, start, stop=stop)
        end = min(start + acknowledged, stop, ITEMS)
        rig.places.acknowledge(reader, end, now=0)
        rig.comes(reader, ITEMS, stop=ITEMS + 1)  # no resume: the next range begins anew
        for index in range(start, end):
            had[index].add(reader)


def test_names_are_counted_and_go_with_what_they_have_passed() -> None:
    pool = MemoryPool(10_000)
    rig = Rig()
    rig.places = Places(rig.queue, Metadata(pool), "d")
    held = [rig.comes(str(number)) for number in range(5)]
    assert pool.used_bytes == 5 * (PLACE_BYTES + RANGE_BYTES)
    with pytest.raises(OutOfBudget, match="reader"):
        held.extend(rig.comes(str(number)) for number in range(5, 100))
    for number, each in enumerate(held):
        rig.leaves(str(number), each, until=60)
    rig.places.expire(60)
    assert pool.used_bytes == 0


def test_a_reader_that_has_every_frame_of_its_range_counts_also_after_it_has_left() -> None:
    rig = Rig()
    rig.queue.close()
    for reader, stop, acknowledged in (("whole", 4, 4), ("part", 8, 6)):
        subscription = rig.comes(reader, stop=stop)
        rig.places.acknowledge(reader, acknowledged, now=0)
        rig.leaves(reader, subscription, until=60)
    assert rig.queue.first == 4
    rig.places.expire(now=61)
    rig.queue.passed(4, ITEMS)
    assert rig.queue.first == 4, "the reader that left its range early passed nothing"
    rig.queue.passed(4, ITEMS)
    assert rig.queue.first == ITEMS
