"""The rows that one task may hold in RAM while it gathers, the place of the rest, and the bytes that waited on disk.

Guarantee of the budgets: where ``spark.executor.pyspark.memory`` limits a Python worker, a task's budgets for receiving
and sending together take at most half of the address space that the worker may still map when they are made; the rest
is for the functions. Without a limit they are the user's settings.

Spark limits a worker's address space, and the kernel counts mappings whether they were touched or not: a fresh worker
with Arrow has mapped about 0.5 GiB. A task for which even that is too little ends with Python's ``MemoryError`` or
Arrow's, and a note that says in which stage.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

LEAST_BYTES = 1 << 20


@dataclass
class TaskMemory:
    """``budget_bytes`` of rows in RAM for each stage that gathers; beyond it files in ``scratch_dir`` (None: the
    system's temporary directory). ``spilled_bytes`` counts the bytes written there, by stages and by the streams that
    they read.
    """

    budget_bytes: int = 64 << 20
    scratch_dir: str | None = None
    spilled_bytes: int = 0

    @contextmanager
    def part(self, budget_bytes: int) -> Iterator[TaskMemory]:
        """So much of the budget, at least a byte. Bytes written for the part count in the whole at the end."""
        part = replace(self, budget_bytes=max(1, budget_bytes), spilled_bytes=0)
        try:
            yield part
        finally:
            self.spilled_bytes += part.spilled_bytes


def reading_budget(wanted_bytes: int) -> int:
    """For a merge, which holds this much, and parks the rest in a file."""
    return _within(wanted_bytes, 4)


def writing_budget(wanted_bytes: int) -> int:
    """For a coalescer, whose peak is about twice as much."""
    return _within(wanted_bytes, 8)


def _within(wanted_bytes: int, parts: int) -> int:
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return wanted_bytes
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        return wanted_bytes
    left_bytes = limit_bytes - pages * os.sysconf("SC_PAGE_SIZE")
    return min(wanted_bytes, max(LEAST_BYTES, left_bytes // parts))
