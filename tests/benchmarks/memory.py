"""Memory that holds: the broadcast scenarios of datafusion-distributed, and harder ones, over sockets.

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
    BATCH_ROWS,
    BATCHES,
    PARTITIONS,
    Readings,
    consume,
    create,
    produce,
    run_all,
)
from tests.support.server_process import ServerProcess

READERS = 4
PARTITION_BYTES = BATCHES * BATCH_ROWS
# What datafusion-distributed holds in the same scenario, MiB, today and with its open change; from its authors.
PEER_MIB = {
    "all_fast": "748 / 61",
    "one_slow": "753 / 71",
    "one_cancel": "752 / 62",
    "unused_partition": "754 / 97",
    "unused_task": "763 / 763",
    "many_consumers": "12.4 / 1.0",
}

COLUMNS = [
    "scenario",
    "limit",
    "pool peak",
    "RSS peak",
    "RSS idle",
    "GB/s out",
    "first batch ms",
    "spilled",
    "read back",
    "peer holds",
    "failed",
]

Work = list[Callable[[], None]]


def _producers(server: ServerProcess, readings: Readings, rows: int = BATCH_ROWS) -> Work:
    return [
        partial(produce, server, "d", index, readings, rows=rows, batches=BATCHES)
        for index in range(PARTITIONS)
    ]


def _readers(
    server: ServerProcess, readings: Readings, skip: Callable[[int, int], bool], **first: Any
) -> Work:
    """All readers but those that ``skip`` names; the very first one gets the options ``first``."""
    work: Work = []
    for index in range(PARTITIONS):
        for reader in range(READERS):
            if not skip(index, reader):
                options = first if (index, reader) == (0, 0) else {}
                work.append(
                    partial(consume, server, "d", index, readings, expected_bytes=PARTITION_BYTES, **options)
                )
    return work


def _broadcast(
    server: ServerProcess, readings: Readings, skip: Callable[[int, int], bool], **first: Any
) -> float:
    create(server, "d", READERS)
    return run_all(*_producers(server, readings), *_readers(server, readings, skip, **first))


def all_fast(server: ServerProcess, readings: Readings) -> float:
    return _broadcast(server, readings, lambda _index, _reader: False)


def one_slow(server: ServerProcess, readings: Readings) -> float:
    return _broadcast(server, readings, lambda _index, _reader: False, wait_seconds=0.002)


def one_cancel(server: ServerProcess, readings: Readings) -> float:
    return _broadcast(server, readings, lambda _index, _reader: False, leave_after=5)


def unused_partition(server: ServerProcess, readings: Readings) -> float:
    return _broadcast(server, readings, lambda index, reader: (index, reader) == (0, 0))


def unused_task(server: ServerProcess, readings: Readings) -> float:
    return _broadcast(server, readings, lambda _index, reader: reader == 0)


def many_consumers(server: ServerProcess, readings: Readings) -> float:
    create(server, "d", 16)
    readers: Work = [
        partial(consume, server, "d", index, readings, expected_bytes=BATCHES * 8192)
        for index in range(PARTITIONS)
        for _ in range(16)
    ]
    return run_all(*_producers(server, readings, 8192), *readers)


def late_joiner(server: ServerProcess, readings: Readings) -> float:
    create(server, "d", None)
    seconds = run_all(
        *_producers(server, readings), *_readers(server, readings, lambda _i, reader: reader > 0)
    )
    late: Work = [
        partial(consume, server, "d", index, readings, expected_bytes=PARTITION_BYTES)
        for index in range(PARTITIONS)
    ]
    return seconds + run_all(*late)


def reader_crash(server: ServerProcess, readings: Readings) -> float:
    create(server, "d", READERS)
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

    return run_all(
        *_producers(server, readings), *_readers(server, readings, lambda _i, reader: reader == 0), kill
    )


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


def larger_than_memory(server: ServerProcess, readings: Readings) -> float:
    """4 GiB written, then read."""
    create(server, "d", None, partitions=4)
    batches, rows = 1024, MIB
    seconds = run_all(
        *[partial(produce, server, "d", index, readings, rows=rows, batches=batches) for index in range(4)]
    )
    return seconds + run_all(
        *[partial(consume, server, "d", index, readings, expected_bytes=batches * rows) for index in range(4)]
    )


def disk_full(server: ServerProcess, readings: Readings) -> float:
    """A dataset that fits is there; producers that do not fit are refused; the first stays readable."""
    create(server, "before", None, partitions=1)
    produce(server, "before", 0, readings, rows=MIB, batches=64)
    create(server, "d", None)
    refused = Readings()
    seconds = run_all(*_producers(server, refused))
    if not refused.failed:
        readings.failed.append("no producer was refused")
    consume(server, "before", 0, readings, expected_bytes=64 * MIB)
    return seconds


SCENARIOS: dict[str, Callable[[ServerProcess, Readings], float]] = {
    function.__name__: function
    for function in (
        all_fast,
        one_slow,
        one_cancel,
        unused_partition,
        unused_task,
        many_consumers,
        late_joiner,
        reader_crash,
        larger_than_memory,
        disk_full,
    )
}
OPTIONS: dict[str, dict[str, str]] = {
    "larger_than_memory": {"memory_limit": "256MiB"},
    "disk_full": {"disk_limit": "256MiB", "budget_deadline_seconds": "2"},
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
    rows = []
    for name in options.scenarios:
        settings = {"memory_limit": options.memory_limit, **OPTIONS.get(name, {})}
        rows.append(_row(name, settings))
    table(
        f"Scenarios, --memory-limit {options.memory_limit} unless said; sizes in MiB",
        COLUMNS,
        rows,
    )
    _spilling_costs()


def _row(name: str, settings: dict[str, Any]) -> list[str]:
    with ServerProcess.start(**settings) as server:
        idle_bytes = server.rss_bytes()
        readings = Readings()
        seconds = SCENARIOS[name](server, readings)
        counted = statistics_of(server)
        peak_bytes = server.peak_rss_bytes()
    return [
        name,
        settings["memory_limit"],
        f"{counted['memory']['peak_bytes'] / MIB:.1f}",
        f"{peak_bytes / MIB:.0f}",
        f"{idle_bytes / MIB:.0f}",
        f"{readings.delivered_bytes / 1e9 / seconds:.2f}",
        readings.first_batch_text,
        f"{counted['spilled_bytes'] / MIB:.0f}",
        f"{counted['bytes_read_back'] / MIB:.0f}",
        PEER_MIB.get(name, ""),
        "; ".join(sorted(set(readings.failed)))[:60] or "-",
    ]


def _spilling_costs() -> None:
    """The same traffic with ample memory, and with a limit that nothing can reach."""
    rates: dict[str, list[float]] = {"4GiB": [], "64GiB": []}
    for _ in range(3):
        for limit, found in rates.items():
            with ServerProcess.start(memory_limit=limit) as server:
                readings = Readings()
                seconds = all_fast(server, readings)
                found.append(readings.delivered_bytes / 1e9 / seconds)
    ratios = sorted(mine / theirs for mine, theirs in zip(rates["4GiB"], rates["64GiB"], strict=True))
    console.print(
        f"all_fast with 4 GiB (ample) over 64 GiB (as if switched off): {ratios[1]:.2f} of the throughput"
    )
