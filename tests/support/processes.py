"""What Linux knows of a process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tests.support.polling import eventually


def cpu_seconds(pid: int) -> float:
    """User and system time so far, over all threads; fields 14 and 15 of proc(5)."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def parent(pid: int) -> int:
    return int(_fields(pid)[1])


def _fields(pid: int) -> list[str]:
    """Those after the name, which may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def status_bytes(pid: int | str, key: str) -> int:
    """``VmRSS``, the resident size now, or ``VmHWM``, the largest so far, as the kernel saw it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"process {pid} has ended and has no {key}")


def runs(pid: int) -> bool:
    try:
        return _fields(pid)[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids: Iterable[int]) -> None:
    """Return when none of the processes runs."""
    for pid in pids:
        eventually(partial(runs, pid), expected=False)
