"""Ticks, by a clock that the tests set."""

from __future__ import annotations

import asyncio

import pytest

from flight_server.concurrency.background import TICK_SECONDS, Background, seconds_to_tick


@pytest.mark.parametrize(
    ("now", "every_seconds", "expected"),
    [(100.1, 0.25, 0.15), (100.1, 0.5, 0.4), (100.0, 2.0, 2.0), (100.249, 0.25, 0.251), (119.9, 60.0, 0.1)],
    ids=["the next quarter", "the next half", "just now", "so near that it is over", "the next minute"],
)
async def test_the_next_tick_is_the_same_for_all(
    now: float, every_seconds: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        def time(self) -> float:
            return now

    monkeypatch.setattr(asyncio, "get_running_loop", Clock)
    assert seconds_to_tick(every_seconds) == pytest.approx(expected)


async def test_duties_wait_for_the_next_tick_and_those_that_look_more_often_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    background, done, pauses = Background(lambda *_, **__: None), asyncio.Event(), []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            done.set()
            await real(60)
        await real(0)

    async def work() -> None:
        pass

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr("flight_server.concurrency.background.seconds_to_tick", lambda every: 7 * every)
    background.keep(work, "rarely", every_seconds=TICK_SECONDS)
    background.keep(work, "often", every_seconds=0.05)
    await done.wait()
    await background.stop()
    assert pauses[:2] == [7 * TICK_SECONDS, 0.05]
