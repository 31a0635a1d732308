"""After everything was dropped a server holds nothing: no byte of memory or disk, no file, no open one, no wait; and it
works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from flight_server.protocol import FlightShuffleError
from spark_client.connection import RemoteServer
from tests.load.torture_calls import Fault, Name
from tests.load.torture_jobs import Jobs
from tests.load.torture_logs import LogCalls
from tests.support.faulty_disk import FaultyServer

SECONDS = 20.0


DATA = frozenset({"datasets", "changelogs", "segments"})
"""The folders of a data directory that have nothing in them then."""


def clear(
    calls_for: Callable[[Name], Jobs | LogCalls],
    server: RemoteServer,
    names: Iterable[Name],
    process: FaultyServer,
    *,
    disk_keeps_files: bool,
) -> None:
    """Drop all names and staged writes, while there is no other traffic.

    Raises:
        Fault: something is left ``SECONDS`` later, or the next put fails.
        Inexplicable: an answer cannot be.
    """
    jobs: Jobs | None = None
    for name in names:
        calls = calls_for(name)
        calls.hurries = False
        calls.clear()
        jobs = calls if isinstance(calls, Jobs) else jobs
    deadline = time.monotonic() + SECONDS
    while left := _left(server, process, disk_keeps_files=disk_keeps_files):
        if time.monotonic() > deadline:
            raise Fault(f"after everything was dropped there is left {left}; {server.action('why')}")
        time.sleep(0.05)
    if jobs is not None and not jobs.put():
        raise Fault("a server that holds nothing has refused a put")


def _left(server: RemoteServer, process: FaultyServer, *, disk_keeps_files: bool) -> dict[str, Any]:
    root = Path(process.ready["data_dir"])
    folders = [root / name for name in DATA]
    within = tuple(f"{folder}/" for folder in folders)
    statistics = server.action("statistics")
    for name in statistics["datasets"]:
        with suppress(FlightShuffleError):  # it has gone by itself
            server.action("drop", {"dataset": name})
    found = {
        "datasets": statistics["datasets"],
        "staged writes": statistics["staged"]["count"],
        "bytes in memory": statistics["memory"]["used_bytes"],
        "bytes on disk": statistics["disk"]["used_bytes"],
        "waits": statistics["waits"],
        "files": [str(path) for folder in folders for path in folder.rglob("*")],
        "open files": [each for each in _open_files(process.pid) if each.startswith(within)],
    }
    if disk_keeps_files:
        del found["files"]
    return {what: amount for what, amount in found.items() if amount}


def _open_files(pid: int) -> Iterator[str]:
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            yield str(each.readlink())
