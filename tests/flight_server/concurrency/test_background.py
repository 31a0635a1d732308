"""Background tasks: only the server's end ends them, and it ends them all."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flight_server.concurrency.background import Background
from tests.support.background_tasks import count, idle


def no_log(event: str, **facts: object) -> None:
    """What a test counts is in ``failures``."""


async def test_a_task_outlives_the_task_that_started_it() -> None:
    background, gate, done = Background(no_log), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        done.set()

    async def start_and_wait() -> None:
        _ = background.start(work(), "work")
        await asyncio.Event().wait()

    starter = asyncio.ensure_future(start_and_wait())
    while not count(background):  # noqa: ASYNC110  # it announces nothing
        await asyncio.sleep(0)
    starter.cancel()
    await asyncio.wait([starter])
    gate.set()
    await idle(background)
    assert done.is_set()
    await background.stop()


async def test_stopping_cancels_tasks_and_also_those_that_they_start_while_they_end() -> None:
    background, ended = Background(no_log), []

    async def work(depth: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(depth)
            if depth:
                _ = background.start(work(depth - 1), "more work")

    _ = background.start(work(2), "work")
    await asyncio.sleep(0)
    await background.stop()
    await background.stop()
    assert count(background) == 0
    assert ended[0] == 2


async def test_stopping_waits_for_the_present_step_of_a_thread() -> None:
    background, started, gate, steps = Background(no_log), threading.Event(), threading.Event(), []

    def step() -> None:
        started.set()
        gate.wait(30)
        steps.append("whole")

    async def work() -> None:
        await background.in_thread(step)

    _ = background.start(work(), "work")
    while not started.is_set():  # noqa: ASYNC110  # set by a thread
        await asyncio.sleep(0.001)
    stopping = asyncio.ensure_future(background.stop())
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert steps == ["whole"]


async def test_a_bug_in_a_task_ends_only_that_task() -> None:
    background = Background(no_log)

    async def work() -> None:
        raise ZeroDivisionError

    _ = background.start(work(), "work")
    await idle(background)
    assert await background.in_thread(lambda: 7) == 7
    await background.stop()


async def test_a_duty_goes_on_after_an_exception_and_the_exception_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flight_server.concurrency.background.MIN_BACKOFF_SECONDS", 0.001)
    background, done, runs = Background(no_log), asyncio.Event(), 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise ZeroDivisionError
        done.set()

    background.keep(work, "division", every_seconds=0)
    await done.wait()
    assert background.failures == {"division": 3}
    await background.stop()


async def test_a_failing_duty_pauses_longer_each_time_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flight_server.concurrency.background.MIN_BACKOFF_SECONDS", 60.0)
    background, done, runs = Background(no_log), asyncio.Event(), []

    async def fails() -> None:
        runs.append("fails")
        raise ZeroDivisionError

    async def works() -> None:
        runs.append("works")
        if runs.count("works") == 5:
            done.set()

    background.keep(fails, "fails", every_seconds=0)
    background.keep(works, "works", every_seconds=0)
    await done.wait()
    assert runs.count("fails") == 1
    await background.stop()


async def test_a_duty_without_an_interval_ends_when_its_work_does() -> None:
    background, runs = Background(no_log), []

    async def work() -> None:
        runs.append("once")

    background.keep(work, "once")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert runs == ["once"]
    await background.stop()
