"""What a server takes that does nothing: resident size, CPU time and wake-ups, of one and of several workers.

The sizes are sums over the server's processes, of several workers with their supervisor: ``RSS`` is what ``ps`` shows,
``anonymous`` the part of it that no file backs, ``PSS`` counts pages once that processes share (the workers share what
the supervisor had before the fork, and all processes of the host the libraries). A wake-up is a voluntary switch of any
of the threads.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.benchmarks.measure import MIB, conditions, console, table
from tests.support.server_process import ServerProcess

WORKERS = (1, 2, 4)
SETTLE_SECONDS = 3.0
SECONDS = 20.0


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="idle")
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each is watched")
    options = parser.parse_args(arguments)
    console.print(f"[bold]An idle server[/bold] · {conditions(1)}; {options.seconds:g} s each")
    table(
        "An idle server, all of its processes; MiB",
        ["workers", "processes", "RSS", "anonymous", "file-backed", "PSS", "CPU ms/s", "wake-ups/s"],
        [_row(workers, options.seconds) for workers in options.workers],
    )


def _row(workers: int, seconds: float) -> list[str]:
    with ServerProcess.start(workers=workers) as server:
        time.sleep(SETTLE_SECONDS)
        pids = [server.pid, *(each.pid for each in psutil.Process(server.pid).children())]
        before = _uses(pids)
        time.sleep(seconds)
        after, sizes = _uses(pids), sizes_bytes(pids)
    return [
        str(workers),
        str(len(pids)),
        *(f"{sizes[name] / MIB:.1f}" for name in ("Rss", "Anonymous", "File", "Pss")),
        *(f"{(after[name] - before[name]) / seconds:.1f}" for name in ("milliseconds", "wake-ups")),
    ]


def sizes_bytes(pids: list[int]) -> Counter[str]:
    """By the names of ``smaps_rollup``; ``File`` is what is resident and not anonymous."""
    found = Counter[str]()
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, size = line.split(":")
            found[name] += int(size.split()[0]) << 10
    found["File"] = found["Rss"] - found["Anonymous"]
    return found


def _uses(pids: list[int]) -> Counter[str]:
    """The CPU milliseconds and wake-ups of all threads so far."""
    found = Counter[str]()
    for thread in (each for pid in pids for each in Path(f"/proc/{pid}/task").iterdir()):
        found["milliseconds"] += int(int((thread / "schedstat").read_text().split()[0]) / 1e6)
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                found["wake-ups"] += int(line.split()[1])
    return found
