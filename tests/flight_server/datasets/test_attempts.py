"""Attempts: exactly the accepted ones become visible, each whole, and nothing is left of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.concurrency import at_once
from flight_server.datasets.attempts import Attempts, AttemptState
from flight_server.datasets.partition import Partition
from flight_server.frames.message import Frame, Payload
from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Commit
from flight_server.protocol.errors import AlreadyExists, Conflict, InvalidRequest


def frame(rows: int, pool: MemoryPool) -> Frame:
    return Frame(rows=rows, size_bytes=4, crc32c=0, payload=Payload(b"abcd", pool.reserve(4)))


def written(attempts: Attempts, producer: int, name: str, rows: list[int], pool: MemoryPool) -> None:
    attempt = attempts.begin(producer, name)
    for index, count in enumerate(rows):
        attempt.publish(index, frame(count, pool))
    attempt.commit(Commit(sum(rows), len(rows)))
    attempts.committed(attempt)


def accept(attempts: Attempts, wanted: dict[int, str] | None) -> list[tuple[int, Frame]] | None:
    """The accepted frames with their partitions, one attempt after the other."""
    chosen = attempts.chosen(wanted)
    if chosen is None:
        return None
    attempts.accept(chosen)
    partitions = [Partition("d", index) for index in range(10)]
    taken: list[tuple[int, Frame]] = []
    for attempt in chosen:
        before = [partition.totals.frames for partition in partitions]
        at_once(attempt.hand_over(partitions.__getitem__))
        for partition, frames in zip(partitions, before, strict=True):
            taken += [(partition.index, each) for each in partition.frames(frames)]
    return taken


def test_accepting_takes_the_named_attempts_in_the_order_of_their_producers() -> None:
    pool, attempts = MemoryPool(None), Attempts("d")
    written(attempts, 1, "b", [3, 4], pool)
    written(attempts, 0, "lost", [9, 9], pool)
    written(attempts, 0, "won", [1, 2], pool)
    accepted = accept(attempts, {0: "won", 1: "b"})
    assert accepted is not None
    assert [(index, each.rows) for index, each in accepted] == [(0, 1), (1, 2), (0, 3), (1, 4)]
    assert pool.used_bytes == 16  # what was lost is gone
    del accepted
    assert pool.used_bytes == 0


def test_without_names_the_first_commit_of_each_producer_wins() -> None:
    pool, attempts = MemoryPool(None), Attempts("d")
    written(attempts, 0, "first", [1], pool)
    written(attempts, 0, "second", [2], pool)
    accepted = accept(attempts, None)
    assert accepted is not None
    assert [each.rows for _, each in accepted] == [1]


def test_an_attempt_that_has_not_committed_cannot_be_accepted_and_nothing_changes() -> None:
    pool, attempts = MemoryPool(None), Attempts("d")
    attempt = attempts.begin(0, "a")
    attempt.publish(0, frame(1, pool))
    with pytest.raises(Conflict, match="producer 0 attempt a is writing"):
        accept(attempts, {0: "a"})
    with pytest.raises(Conflict, match="producer 7 attempt x is unknown"):
        accept(attempts, {7: "x"})
    attempt.publish(0, frame(2, pool))
    attempt.commit(Commit(3, 2))
    assert accept(attempts, {0: "a"}) is not None


def test_accepting_the_same_again_is_fine_and_others_is_a_conflict() -> None:
    pool, attempts = MemoryPool(None), Attempts("d")
    written(attempts, 0, "a", [1], pool)
    assert accept(attempts, {0: "a"}) is not None
    assert accept(attempts, {0: "a"}) is None
    assert accept(attempts, None) is None
    with pytest.raises(Conflict, match="sealed with other attempts"):
        accept(attempts, {0: "b"})


def test_totals_that_do_not_match_discard_the_attempt() -> None:
    pool, attempts = MemoryPool(None), Attempts("d")
    attempt = attempts.begin(2, "a")
    attempt.publish(0, frame(5, pool))
    with pytest.raises(InvalidRequest, match="5 rows in 1 frames arrived"):
        attempt.commit(Commit(6, 1))
    assert attempt.state is AttemptState.DISCARDED
    assert pool.used_bytes == 0


def test_a_discarded_attempt_is_told_so_at_its_next_frame() -> None:
    pool, attempts = MemoryPool(None), Attempts("d")
    zombie = attempts.begin(0, "zombie")
    written(attempts, 0, "won", [1], pool)
    accept(attempts, {0: "won"})
    with pytest.raises(Conflict, match="discarded"):
        zombie.publish(0, frame(1, pool))
    with pytest.raises(Conflict, match="discarded"):
        zombie.commit(Commit(0, 0))


def test_an_attempt_id_is_for_one_try_unless_that_try_has_failed() -> None:
    attempts = Attempts("d")
    first = attempts.begin(0, "a")
    with pytest.raises(AlreadyExists, match="attempt a is already writing"):
        attempts.begin(0, "a")
    attempts.discard(first)
    assert attempts.begin(0, "a") is not first


@given(st.data())
def test_whatever_is_accepted_is_exactly_what_those_attempts_wrote(data: st.DataObject) -> None:
    pool, attempts = MemoryPool(None), Attempts("d")
    rows = st.lists(st.integers(0, 9), max_size=4)
    wrote: dict[tuple[int, str], list[int]] = {}
    for producer in range(data.draw(st.integers(0, 4))):
        for number in range(data.draw(st.integers(1, 3))):
            wrote[producer, f"{number}"] = data.draw(rows)
            written(attempts, producer, f"{number}", wrote[producer, f"{number}"], pool)
    chosen = {producer: name for producer, name in wrote if data.draw(st.booleans())}
    accepted = accept(attempts, chosen)
    assert accepted is not None
    expected = [count for producer in sorted(chosen) for count in wrote[producer, chosen[producer]]]
    assert [each.rows for _, each in accepted] == expected
    assert pool.used_bytes == 4 * len(expected)
