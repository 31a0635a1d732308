"""The checks that run after each test find what they are there for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
import uvloop

from flight_server.memory.pool import MemoryPool, Reservation
from tests.support import leftovers


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests leave does not go away, however long one waits."""
    monkeypatch.setattr(leftovers, "GRACE_SECONDS", 0.05)


@pytest.mark.parametrize("daemon", [False, True])
def test_a_running_thread_is_found(daemon: bool) -> None:
    before = leftovers.snapshot()
    gate = threading.Event()
    thread = threading.Thread(target=_wait_for, args=(gate,), name="forgotten", daemon=daemon)
    thread.start()
    try:
        assert leftovers.left_over(before) == ["thread 'forgotten'"]
    finally:
        gate.set()
        thread.join()
    assert leftovers.left_over(before) == []


def test_a_running_child_process_is_found() -> None:
    before = leftovers.snapshot()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = leftovers.left_over(before)
        assert child.stdin is not None
        child.stdin.write(b"\n")
    assert len(found) == 1
    assert f"child process {child.pid}" in found[0]
    assert leftovers.left_over(before) == []


def test_reserved_bytes_are_found_and_those_in_a_reference_cycle_are_collected_first() -> None:
    before = leftovers.snapshot()
    pool = MemoryPool(100, "forgotten")
    reservation = Reservation(pool)
    reservation.grow(5)
    assert leftovers.left_over(before) == ["5 bytes reserved in pool 'forgotten'"]
    cycle: list[object] = [reservation]
    cycle.append(cycle)
    del reservation, cycle
    assert leftovers.left_over(before) == []


async def test_a_pending_task_is_found() -> None:
    gate = asyncio.Event()
    task = asyncio.create_task(gate.wait(), name="forgotten")
    found = await leftovers.tasks_left_over()
    gate.set()
    await task
    assert len(found) == 1
    assert "forgotten" in found[0]
    assert await leftovers.tasks_left_over() == []


async def test_an_async_test_that_is_not_the_clients_runs_as_the_server_does() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)


def _wait_for(gate: threading.Event) -> None:
    gate.wait()
