"""Memory that holds: the broadcast scenarios of datafusion-distributed, and a reader that crashes, over sockets.

16 partitions x 100 batches of 500,000 u8 (762.9 MiB), written by 16 producers while they are read with
pyarrow's client on the gRPC lane. The datasets declare how many readers each partition has, as the
peer's do. Peaks are of the server: of its pool by its own exact count, of its process by the kernel's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from pyarrow import flight

from tests.benchmarks.measure import MIB, conditions, console, table
from tests.benchmarks.scenarios import (
    PARTITIONS,
    READERS,
    Readings,
    consume,
    create,
    produce,
    run_all,
)
from tests.support.server_process import ServerProcess

COLUMNS = ["scenario", "pool peak", "RSS peak", "RSS idle", "failed"]

Work = list[Callable[[], None]]


def _producers(server: ServerProcess, readings: Readings) -> Work:
    return [partial(produce, server, index, readings) for index in range(PARTITIONS)]


def _readers(
    server: ServerProcess, readings: Readings, skip: Callable[[int, int], bool], **first: Any
) -> Work:
    """All readers but those that ``skip`` names; the very first one gets the options ``first``."""
    work: Work = []
    for index in range(PARTITIONS):
        for reader in range(READERS):
            if not skip(index, reader):
                options = first if (index, reader) == (0, 0) else {}
                work.append(partial(consume, server, index, readings, **options))
    return work


def _broadcast(
    server: ServerProcess, readings: Readings, skip: Callable[[int, int], bool], **first: Any
) -> None:
    create(server)
    run_all(*_producers(server, readings), *_readers(server, readings, skip, **first))


def all_fast(server: ServerProcess, readings: Readings) -> None:
    _broadcast(server, readings, lambda _index, _reader: False)


def one_slow(server: ServerProcess, readings: Readings) -> None:
    _broadcast(server, readings, lambda _index, _reader: False, wait_seconds=0.002)


def one_cancel(server: ServerProcess, readings: Readings) -> None:
    _broadcast(server, readings, lambda _index, _reader: False, leave_after=5)


def unused_partition(server: ServerProcess, readings: Readings) -> None:
    _broadcast(server, readings, lambda index, reader: (index, reader) == (0, 0))


def unused_task(server: ServerProcess, readings: Readings) -> None:
    _broadcast(server, readings, lambda _index, reader: reader == 0)


def reader_crash(server: ServerProcess, readings: Readings) -> None:
    create(server)
    victim = subprocess.Popen(
        [sys.executable, "-c", _READ_SLOWLY, server.location, str(PARTITIONS)],
        stdout=subprocess.PIPE,
        text=True,
    )

    def kill() -> None:
        assert victim.stdout is not None
        victim.stdout.readline()  # it has its first batches
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        victim.stdout.close()

    run_all(*_producers(server, readings), *_readers(server, readings, lambda _i, reader: reader == 0), kill)


_READ_SLOWLY = """
import sys, threading, time
from pyarrow import flight
def read(index):
    with flight.connect(sys.argv[1]) as client:
        for count, chunk in enumerate(client.do_get(flight.Ticket(f"d/{index}".encode()))):
            if count == 5:
                print("reading", flush=True)
            time.sleep(0.01)
for index in range(int(sys.argv[2])):
    threading.Thread(target=read, args=(index,), daemon=True).start()
time.sleep(60)
"""


SCENARIOS: dict[str, Callable[[ServerProcess, Readings], None]] = {
    function.__name__: function
    for function in (
        all_fast,
        one_slow,
        one_cancel,
        unused_partition,
        unused_task,
        reader_crash,
    )
}


def statistics_of(server: ServerProcess) -> dict[str, Any]:
    """The server's own account."""
    with flight.connect(server.location) as client:
        body = next(iter(client.do_action(("statistics", b"")))).body.to_pybytes()
    loaded: dict[str, Any] = json.loads(body)
    return loaded


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="memory")
    parser.add_argument("--scenarios", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--memory-limit", default="64MiB")
    options = parser.parse_args(arguments)
    console.print(f"[bold]Memory[/bold] · {conditions(1)}")
    rows = [_row(name, options.memory_limit) for name in options.scenarios]
    table(
        f"Scenarios, --memory-limit {options.memory_limit}; sizes in MiB",
        COLUMNS,
        rows,
    )


def _row(name: str, memory_limit: str) -> list[str]:
    with ServerProcess.start(memory_limit=memory_limit) as server:
        idle_bytes = server.rss_bytes()
        readings = Readings()
        SCENARIOS[name](server, readings)
        counted = statistics_of(server)
        peak_bytes = server.peak_rss_bytes()
    return [
        name,
        f"{counted['memory']['peak_bytes'] / MIB:.1f}",
        f"{peak_bytes / MIB:.0f}",
        f"{idle_bytes / MIB:.0f}",
        "; ".join(sorted(set(readings.failed)))[:60] or "-",
    ]
