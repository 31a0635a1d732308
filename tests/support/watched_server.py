"""``python -m tests.support.watched_server``: ``flight-server`` whose event loop is watched.

Guarantee: from the ready line on, the longest step of the loop, and each step above ``LIMIT_SECONDS``, is in a file of
its own in the directory that ``DIRECTORY`` names, at most ``LOOK_SECONDS`` later: how long it took, which callback it
was and where the loop was seen in it. ``loop_steps`` reads these files.

A step is one callback of the loop: one step of a task, one timer, one readable descriptor. What counts is the CPU time
of the loop's thread, because on a loaded machine a short step may take long by the clock. A garbage collection in it
does not count: it belongs to no request.

How
    The loop is a uvloop that wraps each callback that is scheduled from Python. A thread looks every ``LOOK_SECONDS``
    and notes the stack of a step that lasts. A step that holds Python's global lock throughout has no such stack. Not
    seen is what uvloop does between callbacks: it reads and writes sockets, and aiohttp parses the heads of requests.
    The cost of a callback is about a microsecond.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import uvloop

DIRECTORY = "WATCHED_STEPS"
LIMIT_SECONDS = 0.05
LOOK_SECONDS = 0.02
MAX_LISTED = 20
STACK_FRAMES = 12


class Watcher:
    """The steps of the loop whose thread made this object, from :meth:`start` on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._thread = threading.get_ident()
        self._begun: float | None = None  # by the clock, of the present step
        self._seen: tuple[float, str] | None = None  # a step, by its begin, and its stack
        self._collecting_seconds = 0.0  # so far, in the loop's thread
        self._collection_begun = 0.0
        self._longest: dict[str, Any] = {"seconds": 0.0, "step": "", "stack": ""}
        self._listed: list[dict[str, Any]] = []
        self._written: tuple[float, int] | None = None
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, name="watcher", daemon=True)
        self.watching = False

    def start(self) -> None:
        """Watch from now on."""
        gc.callbacks.append(self._collecting)
        self.watching = True
        self._looking.start()

    def end(self) -> None:
        """Stop watching, and write what was found."""
        if self.watching:
            self.watching = False
            gc.callbacks.remove(self._collecting)
            self._ended.set()
            self._looking.join()
        self.write()

    def run(self, callback: Callable[..., object], *arguments: object) -> None:
        """Run one callback of the loop."""
        if not self.watching:
            callback(*arguments)
            return
        collected, begun_cpu = self._collecting_seconds, thread_time()
        begun = self._begun = perf_counter()
        try:
            callback(*arguments)
        finally:
            self._begun = None
            # The clock is a bound on the CPU time, and a tenth as dear.
            worth_noting = min(self._longest["seconds"], LIMIT_SECONDS)
            if perf_counter() - begun > worth_noting:
                taken = thread_time() - begun_cpu - (self._collecting_seconds - collected)
                if taken > worth_noting:
                    self._note(begun, taken, callback)

    def _note(self, begun: float, taken: float, callback: Callable[..., object]) -> None:
        seen = self._seen
        stack = seen[1] if seen is not None and seen[0] == begun else ""
        step = {"seconds": round(taken, 4), "step": _name(callback), "stack": stack}
        if taken > self._longest["seconds"]:
            self._longest = step
        if taken > LIMIT_SECONDS and len(self._listed) < MAX_LISTED:
            self._listed.append(step)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() == self._thread:
            if phase == "start":
                self._collection_begun = thread_time()
            else:
                self._collecting_seconds += thread_time() - self._collection_begun

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            begun = self._begun
            if begun is not None and perf_counter() - begun > LOOK_SECONDS:
                # In no variable: it would keep alive what the step's frames refer to, until the next long step.
                stack = _stack(sys._current_frames().get(self._thread))
                if self._begun == begun:
                    self._seen = begun, stack
            self.write()

    def write(self) -> None:
        """Write what was found since the last time."""
        state = (self._longest["seconds"], len(self._listed))
        if state != self._written:
            self._written = state
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps({"longest": self._longest, "listed": self._listed}))
            new.replace(self._file)


def _name(callback: Callable[..., object]) -> str:
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        return f"a step of {getattr(coroutine, '__qualname__', coroutine)}"
    while isinstance(callback, partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", callback))


def _stack(frame: Any) -> str:
    """The frames of the step, without those that run the loop."""
    found = list(traceback.extract_stack(frame))
    own = [number for number, each in enumerate(found, 1) if each.filename == __file__ and each.name == "run"]
    found = found[own[-1] if own else 0 :][-STACK_FRAMES:]
    return " > ".join(f"{each.name} ({Path(each.filename).name}:{each.lineno})" for each in found)


class WatchedLoop(uvloop.Loop):
    """Runs its callbacks by a :class:`Watcher`."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watched = watcher.run

    # mypy knows other types for each of them: with a variadic one for the arguments.
    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        return super().call_soon(self._watched, callback, *arguments, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: Any = None
    ) -> Any:
        return super().call_soon_threadsafe(self._watched, callback, *arguments, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *arguments: Any, context: Any = None
    ) -> Any:
        return super().call_later(delay, self._watched, callback, *arguments, context=context)

    def add_reader(self, fd: Any, callback: Any, *arguments: Any) -> None:  # type: ignore[override]
        super().add_reader(fd, self._watched, callback, *arguments)

    def add_writer(self, fd: Any, callback: Any, *arguments: Any) -> None:  # type: ignore[override]
        super().add_writer(fd, self._watched, callback, *arguments)


def main() -> None:
    """Run ``flight-server`` with the arguments of this process."""
    # Not above: the command imports its parts in an order of its own.
    from flight_server import __main__ as command  # as said above

    watcher = Watcher(Path(os.environ[DIRECTORY], f"{os.getpid()}.json"))
    announce = command._announce

    def announced(*arguments: Any) -> None:
        announce(*arguments)
        watcher.start()

    setattr(command, "_announce", announced)  # noqa: B010  # mypy wants the same parameters
    uvloop.run = partial(uvloop.run, loop_factory=partial(WatchedLoop, watcher))
    try:
        command.main()
    finally:
        watcher.end()


if __name__ == "__main__":
    sys.argv[0] = "flight-server"
    main()
