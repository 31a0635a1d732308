"""Work that is done to its end, whatever its caller does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flight_server.concurrency import in_thread


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_a_cancellation_comes_after_the_work_and_its_step(threads: ThreadPoolExecutor) -> None:
    begun, goes_on, steps = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        goes_on.wait()
        steps.append("work")

    task = asyncio.ensure_future(in_thread(threads, work, then=lambda: steps.append("then")))
    await asyncio.to_thread(begun.wait)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["work", "then"]


async def test_an_error_of_the_work_is_raised_without_its_step(threads: ThreadPoolExecutor) -> None:
    steps = list[str]()
    with pytest.raises(ZeroDivisionError):
        await in_thread(threads, lambda: 1 // 0, then=lambda: steps.append("then"))
    assert steps == []
