"""The memory of a suite's processes: a limit, where this user may set one, and the largest sum that was seen.

``peak`` is the sum of the proportional set sizes of this process and all below it (``smaps_rollup``: pages that several
share count once), looked at every ``LOOK_SECONDS``; files in the page cache do not count, copies on ``/dev/shm`` that a
process maps do. The limit is a memory cgroup of its own, in either version: it counts the page cache, too, which the
kernel then shrinks, and ends a process that it cannot make room for.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

LOOK_SECONDS = 0.5
_ROOTS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[bool]:
    """Whether this process, with all that it starts in the block, has the limit: its user may make a cgroup."""
    for root, name in _ROOTS:
        group = root / f"benchmark-{os.getpid()}"
        if not (root / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        before = _group_of_this_process(root)
        try:
            (group / name).write_text(str(limit_bytes))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            group.rmdir()
            continue
        try:
            yield True
        finally:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):  # it has just ended
                    (before / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                group.rmdir()
        return
    yield False


def _group_of_this_process(root: Path) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if ("memory" in controllers.split(",")) if root.name == "memory" else not controllers:
            found = root / group.strip("/")
            return found if found.exists() else root
    return root


class MemoryWatch:
    """Looks at all processes from :meth:`start` to :meth:`close`."""

    def __init__(self) -> None:
        self.peak: Counter[str] = Counter()
        """Bytes at the worst moment, by the kind of process."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory-watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.peak = max(self.peak, sizes_bytes(), key=Counter.total)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def sizes_bytes() -> Counter[str]:
    """The proportional set sizes of this process and all below it, by their kind."""
    own, found = psutil.Process(), Counter[str]()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error, OSError):
            words = " ".join(process.cmdline())
            kind = (
                "driver"
                if process == own
                else "JVM"
                if process.name() == "java"
                else "tasks"
                if "pyspark" in words
                else "server"
            )
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    found[kind] += int(line.split()[1]) << 10
    return found
