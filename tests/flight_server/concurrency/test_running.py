"""Running calls are ended with a reason, and those that end already are left to it."""

from __future__ import annotations

import asyncio

import pytest

from flight_server.concurrency import Running
from flight_server.protocol import Draining, Unauthenticated


async def test_a_drain_ends_the_others_while_a_call_that_was_ended_still_leaves() -> None:
    running, leaving, left = Running(), asyncio.Event(), asyncio.Event()

    async def leaves_slowly() -> None:
        async with running.call("gone"):
            try:
                await asyncio.Event().wait()
            finally:
                leaving.set()
                await left.wait()

    async def waits() -> None:
        async with running.call("stays"):
            await asyncio.Event().wait()

    calls = [asyncio.create_task(each()) for each in (leaves_slowly, waits)]
    await asyncio.sleep(0)
    running.end_of(lambda whose: whose == "gone", Unauthenticated("the principal is gone"))
    await leaving.wait()
    await running.end(0.0)
    with pytest.raises(Draining):
        await calls[1]
    left.set()
    with pytest.raises(Unauthenticated, match="is gone"):
        await calls[0]


async def test_a_call_that_fails_while_it_is_ended_leaves_nothing_behind() -> None:
    running = Running()

    async def fails() -> None:
        async with running.call("gone"):
            running.end_of(lambda _: True, Unauthenticated("the principal is gone"))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert (len(running), running._ended_for) == (0, {})
