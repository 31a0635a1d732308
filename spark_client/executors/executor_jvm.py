"""The process of a task's executor, and what /proc says of processes."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from flight_server.protocol import InvalidRequest


def executor_process() -> int:
    """The JVM that this process descends from: its executor, or the driver in local mode.

    Raises:
        InvalidRequest: there is none.
    """
    pid = os.getpid()
    while (pid := _parent(pid)) > 0:
        if _name(pid) == "java":
            return pid
    raise InvalidRequest(
        "no JVM is among the parents of this process: servers in executors are started by Spark's tasks"
    )


def cores_of(pid: int) -> int | None:
    """How many tasks an executor's JVM runs at once, which its command line says; None for the driver's in local
    mode.
    """
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    found = [after for word, after in pairwise(words) if word == b"--cores" and after.isdigit()]
    return int(found[-1]) if found else None


def start_of(pid: int) -> int | None:
    """The clock tick of a process's start; None if it has ended, also while its parent has not waited for it."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    return None if fields[1] == "Z" else int(fields[20])


def _name(pid: int) -> str:
    return _stat(pid)[0]


def _parent(pid: int) -> int:
    return int(_stat(pid)[2])


def _stat(pid: int) -> list[str]:
    """The name, state, parent and further fields of /proc/PID/stat; the start is the 21st."""
    text = Path(f"/proc/{pid}/stat").read_text()
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :]
    return [name, *rest.split()]
