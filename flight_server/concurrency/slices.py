"""Slices: other tasks run while something long is done.

Guarantee: each way below lets other tasks run after about ``SLICE_SECONDS``, or after so many things.

    in_slices    a loop over things
    in_steps     a generator whose every step is short; it returns what the generator returns
    Slice        a task that awaits what is often there at once
    dumped       JSON, which the standard library makes in one step
    later        steps that no caller waits for: of a finalizer, or of a change that has a flag of its own

Later
    ``later`` only appends to a queue, so a finalizer may call it. The duty :func:`run_later` does what was handed over,
    in order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, MutableMapping
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

AT_ONCE = 500
"""Things between two passes of the event loop: about a millisecond's work."""
SLICE_SECONDS = 0.005
FEW = 4096
"""So many small things are changed or released in one step, which is a few milliseconds."""

T = TypeVar("T")
_waiting: SimpleQueue[Iterator[None]] = SimpleQueue()


async def in_slices(things: Iterable[T], at_once: int = AT_ONCE) -> AsyncGenerator[T, None]:
    """Yield the things, which must not change meanwhile; other tasks run after every ``at_once`` of them."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % at_once == 0:
            await asyncio.sleep(0)


class Slice:
    """For a task that awaits, but need not wait: :meth:`end` lets other tasks run after ``SLICE_SECONDS``."""

    __slots__ = ("_until_seconds",)

    def __init__(self) -> None:
        self._until_seconds = perf_counter() + SLICE_SECONDS

    async def end(self) -> None:
        if perf_counter() > self._until_seconds:
            await asyncio.sleep(0)
            self._until_seconds = perf_counter() + SLICE_SECONDS


async def in_steps(steps: Generator[object, None, T]) -> T:
    """Do the steps. Cancelling leaves the rest undone."""
    present = Slice()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await present.end()


def at_once(steps: Generator[object, None, T]) -> T:
    """Do the steps in one."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def dumped(body: Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON of a long answer, which must not change meanwhile."""
    encoder = json.JSONEncoder(separators=(",", ":"))
    return "".join([part async for part in in_slices(encoder.iterencode(body), 10 * AT_ONCE)]).encode()


def later(steps: Iterator[None], put: Callable[[Iterator[None]], None] = _waiting.put) -> None:
    """Have the steps done by :func:`run_later`. Any thread, also from a finalizer."""
    put(steps)  # an argument: the interpreter clears the module's names before the last finalizers run


def emptied(things: MutableMapping[Any, Any]) -> Iterator[None]:
    """Steps that release the things."""
    while things:
        things.popitem()
        yield


async def run_later() -> bool:
    """Do all steps that wait; whether there were any. After a cancellation the next call does the rest."""
    present, any_waited = Slice(), False
    while True:
        try:
            steps = _waiting.get_nowait()
        except Empty:
            return any_waited
        any_waited = True
        try:
            for _ in steps:
                await present.end()
        except asyncio.CancelledError:
            _waiting.put(steps)
            raise
