"""The merge's state machine, step by step. Schedules are permuted in ``test_merge_queue_model``."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_server.memory.pool import MemoryPool, Reservation
from flight_server.protocol.errors import BadFrame
from spark_client.merge.merge_queue import END, WAIT, Held, MergeQueue, Meter

Item = Held[str] | str


def test_a_consumer_that_waits_gets_its_item_from_ram_though_the_pool_is_full() -> None:
    pool = MemoryPool(100)
    others = pool.reserve(95)
    queue: MergeQueue[Item] = MergeQueue(2, pool)
    assert queue.take() is WAIT
    assert queue.admit(1, 50) is None
    kept = queue.admit(0, 50)
    assert kept is not None
    assert pool.used_bytes == 145
    assert queue.admit(0, 50) is None, "over the limit once, never twice"
    del others, kept


def test_an_item_larger_than_the_budget_is_admitted_to_an_empty_pool_only() -> None:
    pool = MemoryPool(100)
    queue: MergeQueue[Item] = MergeQueue(1, pool)
    small = queue.admit(0, 1)
    assert queue.admit(0, 500) is None
    del small
    large = queue.admit(0, 500)
    assert large is not None
    assert large.size_bytes == 500


def test_the_last_end_of_the_line_that_the_consumer_waits_for_wakes_it_and_no_other_end() -> None:
    queue: MergeQueue[Item] = MergeQueue(3, MemoryPool(100), feeders=2)
    assert queue.take() is WAIT
    assert [queue.end(line) for line in (1, 0, 1, 0)] == [False, False, False, True]
    assert queue.take() is WAIT, "of the last line, because the two before it have ended"
    assert [queue.end(2), queue.end(2)] == [False, True]
    assert queue.take() is END


def test_each_taker_gets_an_error_of_its_own_with_the_first_as_its_cause() -> None:
    queue: MergeQueue[Item] = MergeQueue(1, MemoryPool(100))
    cause = BadFrame("first")
    queue.fail(cause)
    with pytest.raises(BadFrame) as one:
        queue.take()
    with pytest.raises(BadFrame) as two:
        queue.take()
    assert one.value is not two.value
    assert one.value.__cause__ is two.value.__cause__ is cause


def test_a_batch_counts_its_decoded_bytes() -> None:
    batch = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
    assert Meter(MemoryPool(None), batch.schema).measure(batch) == (8000, None)


def test_a_dictionary_is_counted_once_and_as_long_as_any_batch_or_the_stream_needs_it() -> None:
    pool = MemoryPool(None)
    words = pa.array([f"word {i}" for i in range(1000)])
    column = pa.DictionaryArray.from_arrays(pa.array(range(1000), pa.int32()), words)
    batches = [pa.record_batch({"w": column.slice(i * 100, 100)}) for i in range(3)]
    meter = Meter(pool, batches[0].schema)
    held: list[tuple[int, Reservation | None]] = [meter.measure(batch) for batch in batches]
    assert pool.used_bytes == words.get_total_buffer_size()
    assert held[0][1] is held[2][1]
    assert all(own_bytes <= 4000 for own_bytes, _ in held)
    del meter
    assert pool.used_bytes > 0
    held.clear()
    assert pool.used_bytes == 0
