"""The coalescer counts the bytes that it holds, and stays within its docstring's limits."""

from __future__ import annotations

import gc
import io
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_client.arrow.coalescer import Coalescer
from tests.support.coalescing import KIB, numbered


@pytest.fixture
def arrow_pool() -> Iterator[pa.MemoryPool]:
    """Arrow's memory, counted from zero for one test."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(usual)


def narrow(rows: int, partitions: int, *, first: int) -> tuple[pa.RecordBatch, Any]:
    """Rows that weigh less than the room that sorting them takes, and not all the same."""
    texts = pa.array(["", "a", "bc", "def"] * (rows // 4))
    return pa.record_batch([texts], names=["t"]), numbered(rows, partitions, first=first)[1]


def wide(rows: int, partitions: int, *, first: int) -> tuple[pa.RecordBatch, Any]:
    return numbered(rows // 10, partitions, first=first, width=40)


@pytest.mark.parametrize(
    ("make", "partitions"),
    [
        (narrow, 16),
        (numbered, 1_000),
        *(pytest.param(numbered, each, marks=pytest.mark.long) for each in (1, 16)),
        *(pytest.param(narrow, each, marks=pytest.mark.long) for each in (1, 1_000)),
        *(pytest.param(wide, each, marks=pytest.mark.long) for each in (1, 16, 1_000)),
    ],
)
def test_memory_stays_within_what_is_promised(
    arrow_pool: pa.MemoryPool, partitions: int, make: Callable[..., tuple[pa.RecordBatch, Any]]
) -> None:
    budget_bytes = 4_000 * KIB
    schema = make(4, 1, first=0)[0].schema
    coalescer = Coalescer(schema, partitions, budget_bytes=budget_bytes, target_frame_bytes=200 * KIB)
    added = rows = 0
    tracemalloc.start()
    for index in range(60):  # of numbered and wide rows some times the budget
        batch, ids = make(10_000, partitions, first=10_000 * index)
        added += batch.num_rows
        # A copy into Arrow's own memory, where it is counted.
        for _, frame in coalescer.add(pa.concat_batches([batch]), ids):
            rows += frame.num_rows
            del frame
        del batch
        assert arrow_pool.bytes_allocated() <= coalescer.buffered_bytes <= budget_bytes
    del ids
    for _, frame in coalescer.finish():
        rows += frame.num_rows
        del frame
    _, numpy_peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == added
    assert arrow_pool.bytes_allocated() == 0
    # A frame is below 400 KiB here, and so is the batch being added; the rest is Python's own objects.
    assert arrow_pool.max_memory() + numpy_peak_bytes <= 2 * budget_bytes + 1_000 * KIB


def test_small_blocks_take_no_second_copy_of_what_is_buffered(arrow_pool: pa.MemoryPool) -> None:
    budget_bytes = 8_000 * KIB
    schema = numbered(1, 1)[0].schema
    coalescer = Coalescer(schema, 16, budget_bytes=budget_bytes, target_frame_bytes=200 * KIB)
    for index in range(60):
        batch, ids = numbered(10_000, 16, first=10_000 * index)
        for _, frame in coalescer.add(pa.concat_batches([batch]), ids):
            del frame
    list(coalescer.finish())
    # A block of 1 MiB and the batches that it is made of, a frame, and what begins the next round.
    assert arrow_pool.max_memory() <= budget_bytes * 9 // 8 + 3_000 * KIB


def test_a_slice_does_not_keep_its_parent() -> None:
    parent, ids = numbered(100_000, 4)
    coalescer = Coalescer(parent.schema, 4)
    assert not list(coalescer.add(parent.slice(50, 100), ids[50:150]))
    assert coalescer.buffered_bytes < 10 * KIB
    assert sum(frame.num_rows for _, frame in coalescer.finish()) == 100


def test_one_column_of_a_received_message_does_not_keep_the_message(arrow_pool: pa.MemoryPool) -> None:
    batch, ids = numbered(1_000, 4, width=50)
    file = io.BytesIO()
    with pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    # Read from a file object, a message is one allocation, which its columns are parts of.
    received = pa.ipc.open_stream(pa.PythonFile(io.BytesIO(file.getvalue()), "r")).read_next_batch()
    one_column = received.select([0])
    coalescer = Coalescer(one_column.schema, 4)
    assert not list(coalescer.add(one_column, ids))
    # The message is Python's memory here, so what Arrow has allocated is the copy of the one column.
    assert 8_000 <= arrow_pool.bytes_allocated() <= coalescer.buffered_bytes < 40_000
    list(coalescer.finish())
    whole = Coalescer(received.schema, 4)
    assert not list(whole.add(received, ids))
    assert arrow_pool.bytes_allocated() < 400_000 <= whole.buffered_bytes


def test_batches_that_fit_are_kept_without_a_copy() -> None:
    coalescer = Coalescer(numbered(1, 1)[0].schema, 1, target_frame_bytes=KIB * KIB)
    gc.collect()  # what other tests have left would go at a time of its own
    before = pa.total_allocated_bytes()
    for index in range(10):
        assert not list(coalescer.add(numbered(1_000, 1, first=index)[0]))
    assert pa.total_allocated_bytes() == before
