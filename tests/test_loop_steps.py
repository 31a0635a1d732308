"""The watch over the event loop of servers finds a long step, and names it."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Coroutine
from pathlib import Path
from time import sleep, thread_time
from typing import Any

import pytest

from tests.support import loop_steps
from tests.support.watched_server import LIMIT_SECONDS, WatchedLoop, Watcher


def spin(seconds: float) -> None:
    end = thread_time() + seconds
    while thread_time() < end:
        pass


async def stand_still(seconds: float) -> None:
    await asyncio.sleep(0)
    spin(seconds)
    await asyncio.sleep(0)


def watched(work: Coroutine[Any, Any, None], file: Path) -> dict[str, Any]:
    """What the watcher has written after this work."""
    watcher = Watcher(file)
    loop = WatchedLoop(watcher)
    try:
        watcher.start()
        loop.run_until_complete(work)
    finally:
        watcher.end()
        loop.close()
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_step_of_a_task_that_takes_long_is_listed_with_its_stack(tmp_path: Path) -> None:
    found = watched(stand_still(4 * LIMIT_SECONDS), tmp_path / "steps.json")
    assert [each["step"] for each in found["listed"]] == ["a step of stand_still"]
    assert "stand_still" in found["listed"][0]["stack"]
    assert "spin" in found["listed"][0]["stack"]
    assert found["longest"] == found["listed"][0]


def test_a_callback_that_takes_long_is_listed(tmp_path: Path) -> None:
    async def later() -> None:
        asyncio.get_running_loop().call_later(0.001, spin, 3 * LIMIT_SECONDS)
        await asyncio.sleep(0.01)

    found = watched(later(), tmp_path / "steps.json")
    assert [each["step"] for each in found["listed"]] == ["spin"]


def test_a_step_that_waits_for_the_processor_is_not_listed(tmp_path: Path) -> None:
    async def descheduled() -> None:
        sleep(3 * LIMIT_SECONDS)  # noqa: ASYNC251 # as a loaded machine would let it wait

    assert watched(descheduled(), tmp_path / "steps.json")["listed"] == []


def test_a_garbage_collection_does_not_count_to_the_step_in_which_it_runs(tmp_path: Path) -> None:
    collections: list[float] = []

    def slowly(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            spin(3 * LIMIT_SECONDS)
            collections.append(3 * LIMIT_SECONDS)

    async def collecting() -> None:
        gc.collect()

    gc.callbacks.insert(0, slowly)
    try:
        found = watched(collecting(), tmp_path / "steps.json")
    finally:
        gc.callbacks.remove(slowly)
    assert collections
    assert found["listed"] == []


def test_a_step_is_reported_once_and_the_longest_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHED_STEPS", str(tmp_path))
    monkeypatch.setattr(loop_steps, "longest", {"seconds": 0.0})
    watched(stand_still(2 * loop_steps.FAILING_SECONDS), tmp_path / "1.json")
    (found,) = loop_steps.long_steps("here")
    assert "a step of stand_still" in found
    assert loop_steps.long_steps("there") == []
    assert loop_steps.longest["test"] == "here"
