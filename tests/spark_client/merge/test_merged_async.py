"""merge_async: the same merge for a task of an event loop, which may be cancelled at each await."""

from __future__ import annotations

import asyncio

import pytest

from flight_server.memory.pool import MemoryPool
from flight_server.protocol.errors import BadFrame
from spark_client.merge.merged import AsyncMergedStream, merge_async
from tests.support.fake_stream import (
    BATCH_BYTES,
    QUICK,
    ROWS,
    SCHEMA,
    FakeStream,
    all_closed,
    fakes,
    rows_of,
    waits,
)
from tests.support.polling import eventually

pytestmark = pytest.mark.usefixtures("hasty")


async def until_it_waits(holder: list[AsyncMergedStream]) -> None:
    """Let the loop run until the stream that is in ``holder``, or comes to be, has a waiting consumer."""
    while not holder or not waits(holder[0]):  # noqa: ASYNC110 (nothing tells that a consumer waits)
        await asyncio.sleep(0)


async def test_async_for_gives_every_row_from_ram_and_disk() -> None:
    streams = fakes(3)
    for stream in streams:
        for i in range(10):
            stream.send(i * ROWS, ROWS)
        stream.finish()
    async with merge_async(streams, pool=MemoryPool(BATCH_BYTES), timeouts=QUICK) as merged:
        assert await merged.schema() == SCHEMA
        rows = rows_of([batch async for batch in merged])
    assert sorted(rows) == [(stream.number, n) for stream in streams for n in range(10 * ROWS)]


async def test_batches_that_came_together_survive_a_cancel_between_them() -> None:
    stream = FakeStream()
    pool = MemoryPool(3 * BATCH_BYTES)
    stream.send_run(0, ROWS, 3)
    stream.send_run(3 * ROWS, ROWS, 3)
    stream.finish()
    async with merge_async([stream], pool=pool, timeouts=QUICK) as merged:
        await asyncio.to_thread(eventually, stream.closed.is_set, expected=True)
        rows = []
        for _ in range(6):
            task = asyncio.ensure_future(anext(merged))
            await asyncio.sleep(0)
            task.cancel()
            try:
                batch = await task
            except asyncio.CancelledError:
                batch = await anext(merged)
            rows += rows_of([batch])
        assert rows == [(0, n) for n in range(6 * ROWS)]
    assert pool.used_bytes == 0


async def test_cancelling_a_waiting_next_loses_nothing() -> None:
    stream = FakeStream()
    async with merge_async([stream], pool=MemoryPool(1), timeouts=QUICK) as merged:
        for n in range(20):
            task = asyncio.ensure_future(anext(merged))
            await until_it_waits([merged])
            # In the same moment, so that both orders of cancel and wake-up come up.
            stream.send(n)
            if n % 2:
                await asyncio.to_thread(eventually, lambda: stream.unread, 0)
            task.cancel()
            try:
                batch = await task
            except asyncio.CancelledError:
                batch = await anext(merged)
            assert rows_of([batch]) == [(0, n)]


async def test_a_cancelled_task_ends_every_stream() -> None:
    streams = fakes(3)

    async def consume() -> None:
        async with merge_async(streams, timeouts=QUICK) as merged:
            holder.append(merged)
            async for _ in merged:
                pass

    holder: list[AsyncMergedStream] = []
    task = asyncio.ensure_future(consume())
    await until_it_waits(holder)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all_closed(streams)


async def test_the_first_error_reaches_the_async_consumer_and_ends_every_stream() -> None:
    streams = fakes(3)
    streams[1].break_off(BadFrame("broken"))
    merged = merge_async(streams, timeouts=QUICK)
    with pytest.raises(BadFrame, match="broken"):
        await anext(merged)
    assert all_closed(streams)
