"""Stages that fail in the first task that runs them, when it has given some of its rows many times over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


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
