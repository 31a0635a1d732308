"""What a test may leave behind: nothing. Reads the state of this process, cheaply enough for each test.

``snapshot`` is taken before a test and ``left_over`` says in words what is there in addition afterwards. What
is ending at that moment (a thread past its last line, a process not yet reaped) is given a grace period that
costs time only when something is in fact left.

Not seen: bare file descriptors; objects that own one warn when they are collected without having been closed,
and warnings are errors here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import server_fork

GRACE_SECONDS = 20.0
_POLL_SECONDS = 0.01
_YOUNG_SECONDS = 0.02
_MOST_BYTES = 1 << 16
# These live as long as the process, which starts each once. The servers that are forked from the last one do not.
_JVM = "pyspark-shell"  # of all sessions of this process; the first may begin in any test
_PERMANENT_CHILDREN = ("multiprocessing.resource_tracker", server_fork.__name__, _JVM)
_OUR_PACKAGES = ("flight_server", "spark_client", "tests")


@dataclass(frozen=True)
class Snapshot:
    """What was there before the test."""

    threads: frozenset[int]
    children: frozenset[int]
    # By identity: a pool that is still referenced afterwards cannot have given its id to another.
    used_bytes: dict[int, int]


def snapshot() -> Snapshot:
    """Return what is there now."""
    used_bytes = {identity: used for identity, _, used in _pools()}
    return Snapshot(frozenset(_threads()), frozenset(_children()), used_bytes)


def left_over(before: Snapshot, *, reservations: bool = True) -> list[str]:
    """Return what is there in addition to ``before`` after the grace period; empty when nothing is.

    ``reservations=False`` leaves out the pools: the traceback of a failed test keeps its bytes alive.
    """
    if not _difference(before, reservations=reservations):
        return []
    # What a test has made is young for the most part; a collection of all takes up to half a second.
    gc.collect(1)
    if not _after(_YOUNG_SECONDS, before, reservations=reservations):
        return []
    gc.collect()
    return _after(GRACE_SECONDS, before, reservations=reservations)


async def tasks_left_over() -> list[str]:
    """Return the tasks of the running loop other than the caller, after the grace period."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, tasks = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
    return [f"task {task!r}" for task in tasks]


def _after(seconds: float, before: Snapshot, *, reservations: bool) -> list[str]:
    """The difference after at most this time; it is empty as soon as there is none."""
    deadline = time.monotonic() + seconds
    while (found := _difference(before, reservations=reservations)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return found


def _difference(before: Snapshot, *, reservations: bool) -> list[str]:
    found = [f"thread {name!r}" for identity, name in _threads().items() if identity not in before.threads]
    found += [f"child process {pid}: {_command(pid)}" for pid in sorted(_children() - before.children)]
    if reservations:
        for identity, name, used in _pools():
            more = used - before.used_bytes.get(identity, 0)
            if more > 0:
                found.append(f"{more} bytes reserved in pool {name!r}")
    return found


def _threads() -> dict[int, str]:
    return {id(thread): thread.name for thread in threading.enumerate() if _counts(thread)}


def _counts(thread: threading.Thread) -> bool:
    if thread is threading.main_thread():
        return False
    # Libraries keep daemon threads for the life of the process (py4j, grpc); those of ours end with what owns
    # them. The target is kept by Thread only under a private name.
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return not thread.daemon or any(module.startswith(_OUR_PACKAGES) for module in modules)


def _children() -> set[int]:
    commands = {pid: _command(pid) for pid in _child_pids("self")}
    permanent = {
        pid for pid, command in commands.items() if any(name in command for name in _PERMANENT_CHILDREN)
    }
    forked = () if (fork := server_fork.pid()) is None else _child_pids(fork)
    return (commands.keys() - permanent) | {*forked}


def _child_pids(process: int | str) -> Iterator[int]:
    # A child is listed under the thread that started it, and under any other once that thread has ended. Twice for each
    # test: pathlib takes five times as long.
    with os.scandir(f"/proc/{process}/task") as tasks:
        for task in tasks:
            try:
                listed = os.open(f"{task.path}/children", os.O_RDONLY)
                try:
                    children = os.read(listed, _MOST_BYTES)
                finally:
                    os.close(listed)
            except OSError:  # the thread ended meanwhile
                continue
            yield from map(int, children.split())


def _command(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(gone)"
    return command.strip() or "(ended, not reaped)"


def _pools() -> Iterator[tuple[int, str, int]]:
    # Not imported here: a test that uses no pool must not pay for it, nor have its imports changed.
    memory = sys.modules.get("flight_server.memory.pool")
    if memory is not None:
        if not _watched:
            _watched.append(memory.MemoryPool)
            _watch(memory.MemoryPool)
        for pool in list(_made):
            yield id(pool), pool.name, pool.used_bytes


_watched: list[type] = []
_made: weakref.WeakSet[Any] = weakref.WeakSet()


def _watch(pools: Any) -> None:
    """Note the pools that there are, and each one that is made from now on: to look for them takes long."""
    make = pools.__init__

    def noted(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        _made.add(self)

    pools.__init__ = noted
    _made.update(each for each in gc.get_objects() if issubclass(type(each), pools))
