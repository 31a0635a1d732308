"""The first job of a fresh server against its second: the cost of memory that no one has written to before.

``puts`` is so many bytes in frames of 1 MiB, put by processes through the public client and then read. ``exchange`` is
what Spark's tasks do, without Spark: 8 write tasks place rows of 4 columns, one of them a string, into 16 partitions,
which 16 read tasks read. The workers are fresh, too, in ``fresh workers``; otherwise they have worked before, for
another server. Each row is the median of several servers.

``server`` is the CPU seconds of the server's process, ``loop`` those of its event loop alone, ``workers`` those of all
workers together. Faults, of the loop and of the workers, are pages that the kernel had to provide there and then.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from functools import cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

from flight_server.protocol import DatasetRequest
from spark_client import ShuffleClient
from spark_client.arrow import Declared
from spark_client.connection import RemoteServer
from spark_client.jobs import InTurn, Shuffles, WriteTask
from spark_client.merge import DatasetRef
from tests.benchmarks.measure import GB, MIB, conditions, console, cpu_seconds, own_cpu_seconds, table
from tests.benchmarks.peers import batch_of
from tests.support.server_process import ServerProcess

WORKERS = 2
PRODUCERS = 8
PARTITIONS = 16
BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Cost:
    """What one job has cost."""

    seconds: float
    server_seconds: float
    loop_seconds: float
    loop_faults: float
    worker_seconds: float
    worker_faults: float

    def per(self, size_bytes: int) -> Cost:
        """The same for each gigabyte."""
        return Cost(*(each / (size_bytes / GB) for each in astuple(self)))


Used = tuple[float, int]
"""CPU seconds and faults of one task in a worker."""


def _used(work: Callable[[], object]) -> Used:
    def now() -> Used:
        return own_cpu_seconds(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    before = now()
    work()
    after = now()
    return after[0] - before[0], after[1] - before[1]


@cache
def _frame() -> pa.RecordBatch:
    return batch_of(MIB)


@cache
def _rows() -> pa.RecordBatch:
    numbers = np.random.default_rng(7).integers(0, 1 << 40, BATCH_ROWS)
    columns = [numbers, numbers * 2, numbers * 0.5, [f"row {number}" for number in numbers.tolist()]]
    return pa.record_batch([pa.array(column) for column in columns], names=["key", "a", "b", "c"])


def _put(location: str, dataset: str, size_bytes: int) -> Used:
    frame = _frame()

    def work() -> None:
        with ShuffleClient(location) as client:
            client.put(dataset, repeat(frame, size_bytes // MIB))

    return _used(work)


def _get(location: str, dataset: str, size_bytes: int) -> Used:
    def work() -> None:
        with ShuffleClient(location) as client:
            assert sum(int(batch.nbytes) for batch in client.get(dataset)) == size_bytes

    return _used(work)


def _write(task: WriteTask, producer: int, batches: int) -> Used:
    rows = _rows()
    return _used(lambda: task.write(repeat(rows, batches), producer, str(producer)))


def _read(ref: DatasetRef, partition: int) -> Used:
    return _used(lambda: sum(batch.num_rows for batch in ref.read(partition)))


Job = Callable[[ProcessPoolExecutor, str, int], Iterator[Used]]
"""Runs one job of about so many bytes at a location; what each task used."""


def puts(workers: ProcessPoolExecutor, location: str, size_bytes: int) -> Iterator[Used]:
    """Two datasets, put and read."""
    name, each = uuid.uuid4().hex, size_bytes // WORKERS // MIB * MIB
    names = [f"{name}/{number}" for number in range(WORKERS)]
    with ShuffleClient(location) as client:
        for work in (_put, _get):
            yield from workers.map(work, repeat(location), names, repeat(each))
        for each_name in names:
            client.drop(each_name)


def exchange(workers: ProcessPoolExecutor, location: str, size_bytes: int) -> Iterator[Used]:
    """One shuffle dataset, written and read by tasks."""
    name, server, schema = uuid.uuid4().hex, RemoteServer(location), _rows().schema
    shuffles = Shuffles(server, 600.0)
    try:
        generation, places = shuffles.create(name, schema, PARTITIONS)
        declared = Declared("the benchmark", schema)
        task = WriteTask(server, name, generation, PARTITIONS, declared, InTurn(PARTITIONS), places=places)
        batches = max(1, size_bytes // PRODUCERS // _rows().nbytes)
        yield from workers.map(_write, repeat(task), range(PRODUCERS), repeat(batches))
        attempts = {producer: str(producer) for producer in range(PRODUCERS)}
        ref, _ = shuffles.seal(name, generation, attempts)
        yield from workers.map(_read, repeat(ref), range(PARTITIONS))
        server.action("drop", DatasetRequest(name, generation).encode())
    finally:
        shuffles.close()


def _loop(pid: int) -> Used:
    """CPU seconds and faults of the server's first thread, so far; fields 14, 15 and 10 of proc(5)."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[7])


def measured(job: Job, workers: ProcessPoolExecutor, server: ServerProcess, size_bytes: int) -> Cost:
    """The cost of one job, for each gigabyte."""
    pid = server.pid
    before, (loop_seconds, loop_faults) = cpu_seconds(pid), _loop(pid)
    started = time.perf_counter()
    used = list(job(workers, server.location, size_bytes))
    seconds = time.perf_counter() - started
    after = _loop(pid)
    return Cost(
        seconds,
        cpu_seconds(pid) - before,
        after[0] - loop_seconds,
        after[1] - loop_faults,
        sum(each for each, _ in used),
        sum(each for _, each in used),
    ).per(size_bytes)


def _workers() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(WORKERS, get_context("spawn"))


def two_jobs(job: Job, size_bytes: int, *, fresh_workers: bool) -> tuple[Cost, Cost]:
    """First and second job of a fresh server."""
    with ExitStack() as stack:
        workers = stack.enter_context(_workers())
        with ServerProcess.start(memory_limit="6GiB") as other:
            # Starts the workers, and imports there; for `fresh workers` hardly any memory.
            list(job(workers, other.location, 16 * MIB if fresh_workers else size_bytes))
        server = stack.enter_context(ServerProcess.start(memory_limit="6GiB"))
        return measured(job, workers, server, size_bytes), measured(job, workers, server, size_bytes)


JOBS: dict[str, tuple[Job, bool]] = {
    "puts": (puts, False),
    "exchange": (exchange, False),
    "exchange, fresh workers": (exchange, True),
}
COLUMNS = ["job", "", "seconds", "server", "loop", "faults", "workers", "faults"]


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="cold")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="size of a job")
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    options = parser.parse_args(arguments)
    chosen = {name: job for name, job in JOBS.items() if options.only in name}
    console.print(f"[bold]Cold[/bold] · {conditions(options.rounds)}; jobs of {options.mib} MiB")
    found: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in chosen}
    for _ in range(options.rounds):
        for name, (job, fresh) in chosen.items():
            found[name].append(two_jobs(job, options.mib * MIB, fresh_workers=fresh))
    rows: list[list[str]] = []
    for name, pairs in found.items():
        first, second = (_median(costs) for costs in zip(*pairs, strict=True))
        rows += [[name, "first", *_row(first)], [name, "second", *_row(second)]]
        ratios = [
            statistics.median(a / b if b else float("nan") for a, b in each)
            for each in (
                [(getattr(a, what), getattr(b, what)) for a, b in pairs]
                for what in ("seconds", "server_seconds", "loop_seconds", "worker_seconds")
            )
        ]
        wall, server, loop, workers = (f"{ratio:.2f} x" for ratio in ratios)
        rows.append([name, "ratio", wall, server, loop, "", workers, ""])
    table("Seconds, CPU seconds and page faults for each GB", COLUMNS, rows)


def _median(costs: tuple[Cost, ...]) -> Cost:
    return Cost(*(statistics.median(each) for each in zip(*map(astuple, costs), strict=True)))


def _row(cost: Cost) -> list[str]:
    seconds, server, loop, loop_faults, workers, worker_faults = astuple(cost)
    return [
        f"{seconds:.2f}",
        f"{server:.2f}",
        f"{loop:.2f}",
        f"{loop_faults:,.0f}",
        f"{workers:.2f}",
        f"{worker_faults:,.0f}",
    ]
