"""Stages that fail or wait in the first task that runs them, when it has given some of its rows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FATE_SECONDS = 100.0


def first_time(marker: Path) -> bool:
    """Whether no process has asked before."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fails_first(marker: Path, how: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A stage that raises, or with ``how="exit"`` ends its process, at the first batch that any task has. Until then it
    gives the batch so often that frames of the doomed attempt reach the server.
    """

    def fn(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if first_time(marker):
                yield from [batch] * 200
                if how == "exit":
                    os._exit(1)
                raise RuntimeError("first try")
            yield batch

    return fn


def kills_first(marker: Path, victim: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A stage that passes its batches on, and kills a process at the first batch that any task has."""

    def fn(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if first_time(marker):
                os.kill(victim, signal.SIGKILL)
            yield batch

    return fn


def waits_for_its_fate(directory: Path, batches: Iterator[Any], first: int = 2) -> Iterator[Any]:
    """A stage of which the first task, after some of its rows, writes its process to the file ``waits``, and goes on
    when there is a file ``goes on``.
    """
    for number, batch in enumerate(batches):
        yield batch
        if number == first and first_time(directory / "came"):
            (directory / "name").write_text(str(os.getpid()))
            (directory / "name").rename(directory / "waits")
            deadline = time.monotonic() + FATE_SECONDS
            while not (directory / "goes on").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
