"""How long a task's stages take."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

READING = "reading"
"""The name under which a task's input is counted: waiting for it, and decoding it."""


class StageClock:
    """Seconds inside each stage, by its name, without the wait for the stage before.

    Costs two readings of a clock for each batch and stage. Stages of one task run in one thread.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner_seconds = 0.0

    def timed(self, name: str, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches of a stage; the seconds to make each are added to the stage. Closes them at its own close."""
        while True:
            inner_seconds, began = self._inner_seconds, perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                took_seconds = perf_counter() - began
                own_seconds = took_seconds - (self._inner_seconds - inner_seconds)
                self.seconds[name] = self.seconds.get(name, 0.0) + own_seconds
                self._inner_seconds = inner_seconds + took_seconds
            try:
                yield batch
            except GeneratorExit:
                # A read that is not wanted to its end must give its connection back now.
                close = getattr(batches, "close", None)  # a generator's
                if close is not None:
                    close()
                raise
            del batch
