"""Frames: where their bytes are, who counts them, and which dictionaries a reader needs before them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.frames.message import (
    NO_DICTIONARIES,
    DictionaryMessage,
    DictionaryState,
    Payload,
    messages_of,
    missing_messages,
)
from flight_server.memory import DICTIONARY_BYTES
from flight_server.memory.pool import MemoryPool
from flight_server.protocol.errors import CorruptFrame
from tests.support.frames import dictionary, frame, on_disk, spill


def message(sequence: int) -> DictionaryMessage:
    return dictionary(b"", sequence)


def test_a_spilled_frame_is_counted_until_the_reader_that_sends_it_is_done() -> None:
    pool = MemoryPool(None)
    one = frame(100, pool=pool)
    sending = one.at_hand()
    spill(one)
    assert not one.resident
    assert one.at_hand() is sending
    assert pool.used_bytes == 100
    del sending
    assert pool.used_bytes == 0
    assert one.at_hand() is None
    assert one.read_back() == bytes(100)


def test_what_one_reader_has_read_back_others_use_while_it_does() -> None:
    one = frame(10)
    spill(one)
    payload = Payload(one.read_back(), MemoryPool(None).empty())
    one.share(payload)
    assert one.at_hand() is payload
    del payload
    assert one.at_hand() is None


def test_a_frame_that_comes_back_otherwise_is_an_error() -> None:
    one = frame(b"data")
    spill(one, damaged=True)
    with pytest.raises(CorruptFrame, match="another checksum"):
        one.read_back()


def test_bytes_that_are_right_when_they_are_read_again_are_no_damage() -> None:
    one = frame(b"data")
    one.move_to(on_disk(b"data", passing=True))
    assert one.read_back() == b"data"


def test_a_frame_that_is_on_disk_already_lets_its_ram_go() -> None:
    one = frame(b"data")
    one.slice = on_disk(b"data")
    one.leave_ram()
    one.leave_ram()
    assert not one.resident


STEPS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12)
PRODUCERS = st.lists(STEPS, min_size=1, max_size=3)


def states_of(steps: list[tuple[int, bool]]) -> list[DictionaryState]:
    """One producer's states, the first with a dictionary for each id."""
    state = NO_DICTIONARIES
    for number in range(3):
        state = state.replaced(number, message(number), delta=False)
    states = [state]
    for sequence, (number, delta) in enumerate(steps, 3):
        state = state.replaced(number, message(sequence), delta=delta)
        states.append(state)
    return states


def applied(known: dict[int, list[Any]], messages: list[DictionaryMessage], wanted: DictionaryState) -> None:
    """Do what a decoder does: a message replaces its dictionary, or extends it if it is a delta."""
    for each in messages:
        ((number, place),) = [
            (number, chain.index(each)) for number, chain in wanted.by_id.items() if each in chain
        ]
        known[number] = [*known.get(number, []), each] if place else [each]


@given(producers=PRODUCERS)
def test_the_messages_of_states_are_each_there_once_and_in_their_order(
    producers: list[list[tuple[int, bool]]],
) -> None:
    states = [state for steps in producers for state in states_of(steps)]
    found = list(messages_of(states))
    assert len(found) == len(set(found))
    assert set(found) == {each for state in states for chain in state.by_id.values() for each in chain}
    for state in states:
        for chain in state.by_id.values():
            assert sorted(chain, key=found.index) == list(chain)


@given(producers=PRODUCERS, data=st.data())
def test_whatever_a_reader_has_seen_it_then_has_exactly_the_dictionaries_in_force(
    producers: list[list[tuple[int, bool]]], data: st.DataObject
) -> None:
    states = [state for steps in producers for state in states_of(steps)]
    route = data.draw(st.lists(st.sampled_from(states), min_size=1, max_size=8))
    known: dict[int, list[Any]] = {}
    sent = NO_DICTIONARIES
    for wanted in route:
        needed = missing_messages(sent, wanted)
        assert [each.sequence for each in needed] == sorted(each.sequence for each in needed)
        applied(known, needed, wanted)
        assert {number: tuple(chain) for number, chain in known.items()} == wanted.by_id
        sent = wanted


def test_a_delta_costs_as_much_after_thousands_of_others_as_at_first() -> None:
    messages = [message(number) for number in range(4001)]
    state = NO_DICTIONARIES.replaced(0, messages[0], delta=False)
    tracemalloc.start()
    try:
        states = []
        for each in messages[1:]:
            state = state.replaced(0, each, delta=True)
            states.append(state)
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken_bytes < len(states) * DICTIONARY_BYTES / 2
    assert missing_messages(states[-3], states[-1]) == messages[-2:]
    assert state.by_id[0] == tuple(messages)
