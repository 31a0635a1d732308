"""merge over streams of several parts: one that is ahead stops, and one that the consumer waits for goes on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_server.memory.pool import MemoryPool
from spark_client.merge.merged import MergedStream, merge
from tests.support.fake_stream import (
    BATCH_BYTES,
    QUICK,
    ROWS,
    FakeStream,
    all_closed,
    fakes,
    rows_of,
    waiting,
)
from tests.support.polling import eventually

pytestmark = pytest.mark.usefixtures("hasty")


def started(streams: list[FakeStream], parts: int, limit_batches: int = 8) -> MergedStream:
    pool = MemoryPool(limit_batches * BATCH_BYTES)
    return merge(streams, pool=pool, timeouts=QUICK, parts=parts)


def send(stream: FakeStream, part: int, batches: int) -> None:
    for number in range(batches):
        stream.send_run(number * ROWS, ROWS, 1, part)


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [batch.column("n")[0].as_py() // ROWS for batch in batches]


def test_a_stream_that_is_ahead_stops_at_half_of_the_memory_and_goes_on_when_its_part_is_taken() -> None:
    ahead, slow = streams = fakes(2)
    with started(streams, 3) as merged:
        send(ahead, 1, 20)
        ahead.finish()
        # The thread holds one more.
        eventually(lambda: ahead.unread == 20 - 4, expected=True)
        first = merged.part(0)
        for number in range(20):
            slow.send_run(number * ROWS, ROWS, 1)
            assert numbers([next(first)]) == [number]
        assert ahead.unread == 20 - 4
        slow.finish()
        assert not list(first)
        assert merged.spilled_bytes == 0
        assert merged._threads.pool.peak_bytes < 8 * BATCH_BYTES
        assert numbers(list(merged.part(1))) == list(range(20))
        assert not list(merged.part(2))
    assert all_closed(streams)
    assert merged._threads.pool.used_bytes == 0


def test_an_item_larger_than_half_of_the_memory_waits_for_its_part() -> None:
    one, other = streams = fakes(2)
    with started(streams, 2, limit_batches=1) as merged:
        one.send_run(0, ROWS, 3, part=1)
        one.finish()
        send(other, 0, 1)
        assert numbers([next(part := merged.part(0))]) == [0]
        other.finish()
        assert not list(part)
        assert numbers(list(merged.part(1))) == [0, 1, 2]


def test_closing_ends_a_stream_that_has_stopped() -> None:
    one, _ = streams = fakes(2)
    merged = started(streams, 2)
    send(one, 1, 20)
    eventually(lambda: one.unread == 20 - 5, expected=True)
    merged.close()
    assert all_closed(streams)
    assert merged._threads.pool.used_bytes == 0


def test_an_error_of_a_stream_ends_those_that_have_stopped() -> None:
    one, other = streams = fakes(2)
    merged = started(streams, 2)
    send(one, 1, 20)
    eventually(lambda: one.unread == 20 - 5, expected=True)
    other.break_off(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        list(merged.part(0))
    eventually(lambda: all_closed(streams), expected=True)


def test_a_part_that_is_left_is_dropped_if_all_of_it_has_arrived() -> None:
    (stream,) = streams = fakes(1)
    with started(streams, 3) as merged:
        stream.send_run(0, ROWS, 2, part=0)
        part = merged.part(0)
        assert numbers([next(part)]) == [0]
        part.close()
        assert not merged.skip_to(1), "more of it may come"
        send(stream, 0, 1)
        send(stream, 2, 1)
        eventually(lambda: len(waiting(merged)) == 2, expected=True)
        assert merged.skip_to(2)
        assert waiting(merged) == [True]
        stream.finish()
        assert rows_of(list(merged.part(2))) == [(0, n) for n in range(ROWS)]
