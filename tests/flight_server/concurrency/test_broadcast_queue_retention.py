"""Readers that retention overtakes: an error each time, at every place, and never an item out of its turn."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.concurrency.broadcast_queue import Gone, Passes
from tests.support.queues import kept_queue, next_one, take_one


@pytest.mark.parametrize("count", [3, 300])  # few, and so many that the list drops the released ones
@pytest.mark.parametrize("ended", [False, True])
async def test_an_overtaken_reader_is_told_so_each_time_and_never_given_a_later_item(
    count: int, *, ended: bool
) -> None:
    queue = kept_queue(1)
    for number in range(count + 2):
        queue.publish(number, 10)
    with closing(queue.subscribe()) as slow, closing(queue.subscribe()) as fast:
        assert take_one(slow) == 0
        for _ in range(count + 1):
            take_one(fast)
        queue.passed(0, count)
        if ended:
            queue.close()
        for _ in range(3):
            with pytest.raises(Gone) as gone:
                take_one(slow)
            assert (gone.value.item, gone.value.first) == (1, count)
            async with asyncio.timeout(10):
                await slow.wait()
                with pytest.raises(Gone):
                    await next_one(slow)
        assert slow.position == 1
        assert slow.lag_bytes == 20
        assert list(slow.upcoming()) == [count, count + 1]
        # A reader that asks for a released item releases no other.
        assert take_one(fast) == count + 1
        assert queue.first == count


@given(
    st.integers(1, 3), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=12)
)
def test_passes_released_by_runs_are_those_that_counting_each_item_gives(
    wanted: int, runs: list[tuple[int, int, bool]]
) -> None:
    """Those that are given back were counted before, as of readers whose place has ended."""
    passes = Passes(wanted, 0)
    counted = [0] * 41
    first = 0
    given: list[tuple[int, int]] = []
    for begin, length, back in runs:
        (start, stop), by = (given.pop(), -1) if back and given else ((begin, begin + length), 1)
        if by == 1:
            given.append((start, stop))
        passes.add(start, stop, by)
        for index in range(max(start, first), stop):
            counted[index] += by
        while counted[first] >= wanted:
            first += 1
        assert passes.first == first
