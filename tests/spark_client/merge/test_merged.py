"""merge with real threads: its batches, and that every way to end it releases everything."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.memory.pool import MemoryPool
from flight_server.protocol.errors import BadFrame, OutOfBudget, PartitionFailed
from spark_client.connection import ForkedProcess
from spark_client.lanes.lane import Closed
from spark_client.merge import stream_threads
from spark_client.merge.merged import merge
from spark_client.merge.stream_threads import Order
from tests.support.fake_stream import (
    BATCH_BYTES,
    QUICK,
    ROWS,
    SCHEMA,
    FakeStream,
    all_closed,
    fakes,
    rows_of,
    waiting,
    waits,
)
from tests.support.forked_child import in_child
from tests.support.polling import eventually

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.mark.parametrize("order", ["arrival", "stream"])
@pytest.mark.parametrize("limit_bytes", [1, 50_000, None])
def test_every_row_of_every_stream_arrives_once(order: Order, limit_bytes: int | None) -> None:
    streams = fakes(5)
    pool = MemoryPool(limit_bytes)
    expected = [(stream.number, n) for stream in streams for n in range(20 * ROWS)]

    def produce(stream: FakeStream) -> None:
        for i in range(20):
            stream.send(i * ROWS, ROWS)
        stream.finish()

    producers = [threading.Thread(target=produce, args=(stream,)) for stream in streams]
    with merge(streams, pool=pool, order=order, timeouts=QUICK) as merged:
        for producer in producers:
            producer.start()
        rows = rows_of(list(merged))
    for producer in producers:
        producer.join()
    assert (rows if order == "stream" else sorted(rows)) == expected
    assert pool.used_bytes == 0
    if limit_bytes is not None:
        assert pool.peak_bytes <= limit_bytes + BATCH_BYTES


def test_streams_are_drained_while_the_consumer_takes_nothing_and_memory_stays_within_the_budget() -> None:
    streams = fakes(3)
    pool = MemoryPool(3 * BATCH_BYTES)
    for stream in streams:
        for i in range(30):
            stream.send(i * ROWS, ROWS)
        stream.finish()
    with merge(streams, pool=pool, timeouts=QUICK) as merged:
        eventually(lambda: all_closed(streams), expected=True)
        assert pool.used_bytes <= 3 * BATCH_BYTES
        assert (len(waiting(merged)), waiting(merged).count(False)) == (90, 87)
        assert merged.spilled_bytes > 87 * BATCH_BYTES
        rows = rows_of(list(merged))
    for stream in streams:
        assert [n for number, n in rows if number == stream.number] == list(range(30 * ROWS))


def test_batches_that_came_together_are_taken_one_by_one_from_ram_and_disk() -> None:
    stream = FakeStream()
    pool = MemoryPool(5 * BATCH_BYTES)
    with merge([stream], pool=pool, timeouts=QUICK) as merged:
        stream.send_run(0, ROWS, 4)
        stream.send_run(4 * ROWS, ROWS, 4)
        stream.send_run(8 * ROWS, ROWS, 1)
        stream.finish()
        eventually(stream.closed.is_set, expected=True)
        assert sorted(waiting(merged)) == [False, True, True]
        rows = []
        for taken in range(1, 5):
            assert pool.used_bytes == 5 * BATCH_BYTES, "a run is counted until its last batch is taken"
            rows += rows_of([next(merged)])
            assert len(rows) == taken * ROWS
        assert pool.used_bytes == BATCH_BYTES
        rows += rows_of(list(merged))
    assert rows == [(0, n) for n in range(9 * ROWS)]
    assert pool.used_bytes == 0


@pytest.mark.parametrize("how", ["close", "error", "collect"])
def test_what_is_left_of_a_run_is_dropped_when_the_stream_ends_early(how: str) -> None:
    streams = fakes(2)
    pool = MemoryPool(None)
    merged = merge(streams, pool=pool, timeouts=QUICK)
    streams[0].send_run(0, ROWS, 5)
    assert rows_of([next(merged)]) == [(0, n) for n in range(ROWS)]
    assert pool.used_bytes == 5 * BATCH_BYTES
    if how == "collect":
        del merged
        gc.collect()
        eventually(lambda: pool.used_bytes == 0, expected=True)
        return
    if how == "close":
        merged.close()
    else:
        streams[1].break_off(BadFrame("broken"))
        eventually(lambda: all_closed(streams), expected=True)
    assert pool.used_bytes == 0
    with pytest.raises(Closed if how == "close" else BadFrame):
        next(merged)


def test_two_consumers_get_every_batch_once_though_one_of_them_sees_the_end_first() -> None:
    streams = fakes(3)
    merged = merge(streams, timeouts=QUICK)
    taken: list[list[tuple[int, int]]] = [[], []]

    def consume(number: int) -> None:
        for batch in merged:
            taken[number] += rows_of([batch])

    consumers = [threading.Thread(target=consume, args=(number,)) for number in range(2)]
    for consumer in consumers:
        consumer.start()
    for stream in streams:
        for i in range(40):
            stream.send_run(i * 5, 1, 5)
        stream.finish()
    for consumer in consumers:
        consumer.join(20)
    assert sorted(taken[0] + taken[1]) == [(stream.number, n) for stream in streams for n in range(200)]


def test_a_stream_beyond_the_cap_opens_though_the_open_ones_stay_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = fakes(6)
    monkeypatch.setattr(stream_threads, "OPEN_STREAMS", 2)
    with merge(streams, timeouts=QUICK) as merged:
        streams[5].send(1)
        assert rows_of([next(merged)]) == [(5, 1)]
        for stream in streams:
            stream.finish()
        assert list(merged) == []
    assert all_closed(streams)


def test_the_schema_is_known_before_the_first_batch() -> None:
    slow, quick = FakeStream(0, opens=False), FakeStream(1)
    with merge([slow, quick], timeouts=QUICK) as merged:
        assert merged.schema == SCHEMA
        slow.allow_opening()


def test_a_stream_with_another_schema_is_an_error() -> None:
    first, other = FakeStream(0), FakeStream(1, pa.schema([("x", pa.string())]), opens=False)
    with merge([first, other], timeouts=QUICK) as merged:
        assert merged.schema == SCHEMA
        other.allow_opening()
        with pytest.raises(PartitionFailed, match="fake 1 has another schema"):
            next(merged)


def test_an_error_while_opening_reaches_a_consumer_that_waits_for_the_schema() -> None:
    stream = FakeStream(opens=False)
    stream.open = lambda: (_ for _ in ()).throw(BadFrame("no"))  # type: ignore[method-assign]
    with merge([stream], timeouts=QUICK) as merged, pytest.raises(BadFrame, match="no"):
        _ = merged.schema


def test_the_first_error_cancels_the_rest_and_is_raised_where_the_consumer_waits() -> None:
    streams = fakes(4)
    pool = MemoryPool(1000)
    merged = merge(streams, pool=pool, timeouts=QUICK)
    streams[0].send(1)
    next(merged)
    streams[2].send(7, ROWS)
    streams[1].break_off(BadFrame("broken"))
    with pytest.raises(BadFrame, match="broken"):
        for _ in merged:
            pass
    assert all_closed(streams)
    assert pool.used_bytes == 0
    with pytest.raises(BadFrame, match="broken"):
        next(merged)


def test_an_exception_in_the_consumer_ends_every_stream() -> None:
    streams = fakes(4)
    streams[0].send(0)

    def consume() -> None:
        with merge(streams, timeouts=QUICK) as merged:
            for _ in merged:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert all_closed(streams)


def test_closing_wakes_a_consumer_that_waits_in_another_thread() -> None:
    merged = merge(fakes(1), timeouts=QUICK)
    raised: list[BaseException] = []

    def consume() -> None:
        try:
            next(merged)
        except Closed as error:
            raised.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    eventually(lambda: waits(merged), expected=True)
    merged.close()
    consumer.join(20)
    assert len(raised) == 1


@pytest.mark.parametrize("take", [0, 1])
def test_a_collected_stream_ends_its_threads_and_gives_everything_back(take: int, tmp_path: Path) -> None:
    streams = fakes(3)
    pool = MemoryPool(BATCH_BYTES)
    merged = merge(streams, pool=pool, scratch_dir=str(tmp_path), timeouts=QUICK)
    for stream in streams:
        stream.send(0, ROWS)
        stream.send(ROWS, ROWS)
    eventually(lambda: all(stream.unread == 0 for stream in streams), expected=True)
    for _ in range(take):
        next(merged)
    del merged
    gc.collect()
    eventually(lambda: all_closed(streams), expected=True)
    eventually(lambda: pool.used_bytes == 0, expected=True)


def test_a_reader_gives_all_rows_and_the_error_as_it_is() -> None:
    streams = fakes(2)
    for stream in streams:
        stream.send(0, 10)
        stream.finish()
    assert merge(streams, timeouts=QUICK).to_reader().read_all().num_rows == 20
    broken = FakeStream()
    broken.send(0)
    broken.break_off(BadFrame("broken"))
    with pytest.raises(BadFrame, match="broken"):
        merge([broken], timeouts=QUICK).to_reader().read_all()
    assert broken.closed.is_set()


def test_ctrl_c_ends_a_waiting_consumer_and_every_stream() -> None:
    streams = fakes(2)
    merged = merge(streams, timeouts=QUICK)

    def interrupt() -> None:
        eventually(lambda: waits(merged), expected=True)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    # A shell that starts the tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            next(merged)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert all_closed(streams)
    with pytest.raises(Closed):
        next(merged)


def test_an_overdue_stream_is_an_error_where_the_consumer_waits() -> None:
    streams = fakes(2)
    streams[1].late = True
    with merge(streams, timeouts=QUICK) as merged, pytest.raises(TimeoutError, match="fake 1 is late"):
        next(merged)
    assert all_closed(streams)


def test_a_scratch_that_cannot_be_written_is_an_error_that_says_so() -> None:
    streams = fakes(2)
    for stream in streams:
        stream.send(0, ROWS)
        stream.send(0, ROWS)
    with (
        merge(streams, pool=MemoryPool(1), scratch_dir="/nowhere/at/all", timeouts=QUICK) as merged,
        pytest.raises(OutOfBudget, match="/nowhere/at/all"),
    ):
        list(merged)
    assert all_closed(streams)


def test_a_thread_does_not_keep_the_batch_that_it_has_handed_over() -> None:
    stream = FakeStream()
    batch = pa.record_batch([pa.array([0] * ROWS), pa.array(range(ROWS))], schema=SCHEMA)
    before_bytes = pa.total_allocated_bytes()
    with merge([stream], timeouts=QUICK) as merged:
        stream.send_batch(
            pa.record_batch([c.take(pa.array(range(ROWS))) for c in batch.columns], schema=SCHEMA)
        )
        next(merged)
        eventually(lambda: pa.total_allocated_bytes() <= before_bytes, expected=True)


def test_a_forked_child_gets_an_error_and_does_not_hang() -> None:
    streams = fakes(1)
    streams[0].send_run(0, 1, 3)
    with merge(streams, timeouts=QUICK) as merged:
        next(merged)

        def child() -> None:
            with pytest.raises(ForkedProcess):
                next(merged)
            merged.close()

        in_child(child)


def test_a_program_that_ends_in_the_middle_of_a_merge_ends_quietly() -> None:
    program = (
        "from tests.support.fake_stream import FakeStream\n"
        "from spark_client.merge.merged import merge\n"
        "merged = merge([FakeStream(0), FakeStream(1)])\n"
        "merged.schema\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
