"""Places: a reader with a name counts once, however often its connection breaks."""

from __future__ import annotations

import pytest

from flight_server.concurrency.broadcast_queue import BroadcastQueue, Subscription
from flight_server.datasets.places import Places
from flight_server.protocol.errors import Conflict, NotFound

ITEMS = 10


class Rig:
    """A queue of ten items that go when two readers have passed them."""

    def __init__(self) -> None:
        self.queue: BroadcastQueue[int] = BroadcastQueue(retain_readers=2)
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


def test_what_a_reader_has_not_acknowledged_stays_however_much_it_was_sent() -> None:
    rig = Rig()
    rig.queue.passed(0, ITEMS)
    one = rig.comes("one")
    for _ in range(ITEMS):
        one.next_nowait()
    assert rig.queue.first == 0
    rig.places.acknowledge("one", 4, now=0)
    assert rig.queue.first == 4
    rig.places.acknowledge("one", 2, now=0)  # late, and nothing new
    assert rig.queue.first == 4


def test_a_resume_acknowledges_what_comes_before_it_and_counts_nothing_twice() -> None:
    rig = Rig()
    rig.places.expire(0)
    one = rig.comes("one")
    rig.places.acknowledge("one", 3, now=0)
    rig.leaves("one", one, until=60)
    rig.comes("one", 5, now=59)
    rig.places.acknowledge("one", 5, now=1000)
    assert rig.queue.first == 0, "one reader has passed five items, two are wanted"
    rig.queue.passed(0, ITEMS)
    assert rig.queue.first == 5


def test_who_comes_under_a_name_in_use_takes_over() -> None:
    rig = Rig()
    before = rig.comes("one")
    assert before.next_nowait() == 0
    after = rig.comes("one", 1)
    with pytest.raises(Conflict, match="reader 'one' has gone on in another connection"):
        before.next_nowait()
    rig.places.leave("one", before, until=0)  # it has lost its place to the other one
    assert after.next_nowait() == 1
    rig.places.acknowledge("one", 2, now=1000)


def test_a_reader_that_has_every_frame_counts_also_when_others_come_much_later() -> None:
    rig = Rig()
    one = rig.comes("one")
    rig.queue.close()
    rig.places.acknowledge("one", ITEMS, now=0)
    rig.leaves("one", one, until=60)
    rig.comes("two", now=3600)
    rig.places.acknowledge("two", ITEMS - 1, now=3600)
    assert rig.queue.first == ITEMS - 1
    rig.places.acknowledge("two", ITEMS, now=3600)
    assert rig.queue.first == ITEMS


def test_a_place_that_is_given_back_leaves_its_turn_to_another_reader() -> None:
    rig = Rig()
    gone = rig.comes("gone")
    rig.places.acknowledge("gone", ITEMS, now=0)
    rig.leaves("gone", gone, until=60)
    rig.comes("next", now=60)
    rig.places.acknowledge("next", ITEMS, now=60)
    assert rig.queue.first == 0
    with pytest.raises(NotFound, match="'gone' has no place here"):
        rig.places.acknowledge("gone", ITEMS, now=60)
    rig.comes("last", now=61)
    rig.places.acknowledge("last", ITEMS, now=61)
    assert rig.queue.first == ITEMS


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
