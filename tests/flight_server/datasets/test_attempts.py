"""Attempts: exactly the accepted ones become visible, each whole, and nothing is left of the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flight_server.concurrency import at_once
from flight_server.datasets.attempts import Attempt, Attempts
from flight_server.datasets.partition import Partition, Totals
from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Commit
from tests.support.frames import frame


def written(attempts: Attempts, producer: int, name: str, rows: list[int], pool: MemoryPool) -> None:
    attempt = attempts.begin(producer, name)
    for index, count in enumerate(rows):
        attempt.publish(index, frame(4, rows=count, pool=pool))
    attempt.commit(Commit(sum(rows), len(rows)))
    attempts.committed(attempt)


def hand_over(attempts: Attempts, names: dict[int, str], partitions: list[Partition]) -> list[Attempt]:
    chosen = attempts.chosen(names)
    assert chosen is not None
    attempts.accept(chosen)
    for attempt in chosen:
        at_once(attempt.hand_over(partitions.__getitem__))
    return chosen


def take_back(attempts: Attempts, chosen: list[Attempt], partitions: list[Partition]) -> None:
    for attempt in chosen:
        at_once(attempt.take_back(partitions.__getitem__))
    for partition in partitions:
        partition.gave_back()
    attempts.accepted = None


def names(data: st.DataObject, wrote: dict[tuple[int, str], list[int]]) -> dict[int, str]:
    """An attempt of each of some producers."""
    return {producer: name for producer, name in wrote if data.draw(st.booleans())}


@given(st.data())
def test_whatever_is_accepted_last_is_exactly_what_those_attempts_wrote(data: st.DataObject) -> None:
    pool, attempts = MemoryPool(None), Attempts("d")
    rows = st.lists(st.integers(0, 9), max_size=4)
    wrote: dict[tuple[int, str], list[int]] = {}
    for producer in range(data.draw(st.integers(0, 4))):
        for number in range(data.draw(st.integers(1, 3))):
            wrote[producer, f"{number}"] = data.draw(rows)
            written(attempts, producer, f"{number}", wrote[producer, f"{number}"], pool)
    partitions = [Partition("d", index) for index in range(4)]
    for _ in range(data.draw(st.integers(0, 2))):
        take_back(attempts, hand_over(attempts, names(data, wrote), partitions), partitions)
        assert all(partition.totals == Totals(0, 0, 0, 0) for partition in partitions)
    accepted = names(data, wrote)
    hand_over(attempts, accepted, partitions)
    attempts.sealed()
    assert [list(partition.frames()) for partition in partitions] == [[]] * 4, "they are not sealed"
    for partition in partitions:
        expected = [
            count for each in sorted(accepted.items()) for count in wrote[each][partition.index :][:1]
        ]
        partition.seal()
        assert [frame.rows for frame in partition.frames()] == expected
        assert partition.totals.rows == sum(frame.rows for frame in partition.frames())
    assert pool.used_bytes == 4 * sum(partition.totals.frames for partition in partitions)
