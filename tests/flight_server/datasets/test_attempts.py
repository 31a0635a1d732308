"""Attempts: exactly the accepted ones become visible, each whole, and nothing is left of the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flight_server.concurrency import at_once
from flight_server.datasets.attempts import Attempts
from flight_server.datasets.partition import Partition
from flight_server.frames.message import Frame, Payload
from flight_server.memory.pool import MemoryPool
from flight_server.protocol import Commit


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
