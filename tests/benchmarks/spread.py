"""What the driver's state machine costs where a dataset is on many servers: its memory, its calls, its CPU seconds.

No server runs: the machine gets the reports of all tasks, and as answers what servers would send, as JSON. Each server
has rows of all partitions. ``seal`` is from the job's end to the last body of a seal, ``sum`` takes all answers, and
``plan`` shares all partitions out to tasks. ``sent`` is the bodies of all seals together; each server gets its own
attempts and the list of all servers, which is what it keeps. ``release`` is the drops at all servers. ``peak`` and
``held`` are the driver's memory until, and after, the last answer.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spark_client.jobs import Shares, tasks_for
from spark_client.servers import Holder, HolderKind, PlannedDataset, Report, RunJob, ServerStart, place
from spark_client.servers.dataset_machine import DatasetMachine, HeldState
from spark_client.servers.driver_calls import Drop, Seal
from spark_client.servers.server_table import ServerTable
from tests.benchmarks.measure import MIB, conditions, console, table

SIZES = ((1, 100, 200), (10, 1_000, 2_000), (100, 1_000, 100_000), (1_000, 10_000, 1_000_000))
DATASET = "exchange/0123456789abcdef/e0"
CORES = 4_000


def answer(random: np.random.Generator, partitions: int, largest: int | None) -> bytes:
    """What a server with rows of all partitions says to a seal."""
    sizes = random.integers(500, 1_500, partitions)
    named = range(partitions) if largest is None else np.argpartition(sizes, -largest)[-largest:].tolist()
    found = {str(each): int(sizes[each]) for each in named}
    rest_bytes = int(sizes.sum()) - sum(found.values())
    totals = {
        "read_locations": ["grpc://10.0.0.1:8815"],
        "rows": partitions,
        "frames": partitions,
        "bytes": int(sizes.sum()),
    }
    return json.dumps({**totals, "partition_bytes": found, "rest_bytes": rest_bytes}).encode()


def bodies(seals: Sequence[Seal]) -> Iterator[bytes]:
    """What the driver sends. All seals have one list of servers, which is encoded once."""
    servers = json.dumps([each.to_json() for each in seals[0].servers])
    for seal in seals:
        own = {"dataset": seal.dataset, "generation": seal.generation, "attempts": seal.attempts}
        yield f'{json.dumps(own)[:-1]}, "servers": {servers}}}'.encode()


class Clock:
    """CPU seconds since it was last asked."""

    def __init__(self) -> None:
        self._at = time.process_time()

    def lap_seconds(self) -> float:
        before, self._at = self._at, time.process_time()
        return self._at - before


def reports(servers: int, tasks: int, job: RunJob) -> Iterator[Report]:
    """One of each task, which found the server on its host."""
    locations = [f"grpc://10.0.{number >> 8}.{number & 255}:8815" for number in range(servers)]
    (dataset,) = job.generations
    for producer in range(tasks):
        location = place(DATASET, producer, [locations[producer % servers]])
        start = ServerStart(location, f"{producer % servers:016x}")
        yield Report(dataset, producer, str(producer + 7), start, (location,), 1, 1_000)


def planned(partitions: int) -> tuple[DatasetMachine, RunJob]:
    """A machine whose only job runs."""
    machine = DatasetMachine(ServerTable())
    plan, holder = {DATASET: PlannedDataset(partitions)}, Holder(HolderKind.RUN)
    (job,) = machine.plan(plan, "0123456789abcd", holder, 0.0)
    assert isinstance(job, RunJob)
    return machine, job


def measured(servers: int, tasks: int, partitions: int) -> Mapping[str, Any]:
    """One row of the table."""
    random = np.random.default_rng(1)
    machine, job = planned(partitions)
    came = [*reports(servers, tasks, job)]
    clock, found = Clock(), dict[str, Any]()
    calls = machine.ended(job, came, 0.0)
    seals = [call for call in calls if isinstance(call, Seal)]
    assert len(seals) == len(calls) == servers
    sent = [len(body) for body in bodies(seals)]
    found["seal_seconds"] = clock.lap_seconds()
    found["sent_bytes"], found["server_bytes"] = sum(sent), max(sent)
    found["sum_seconds"] = 0.0
    for seal in seals:
        body = answer(random, partitions, seal.largest)
        clock.lap_seconds()
        machine.answered(seal, json.loads(body), 0.0)
        found["sum_seconds"] += clock.lap_seconds()
        found["answer_bytes"] = len(body)
    assert machine.state(DATASET) is HeldState.SEALED
    clock.lap_seconds()
    sizes = machine.totals(DATASET).sizes.sizes()
    assert int(sizes.sum()) == machine.totals(DATASET).size_bytes
    shares = Shares.equal(sizes.tolist(), tasks_for(sizes.tolist(), CORES))
    found["plan_seconds"], found["tasks"] = clock.lap_seconds(), len(shares)
    drops = machine.release(DATASET)
    found["release_seconds"] = clock.lap_seconds()
    assert sum(isinstance(call, Drop) for call in drops) == servers
    return found


def memory(servers: int, tasks: int, partitions: int) -> tuple[int, int]:
    """The driver's peak, and what it holds of a sealed dataset, in bytes. Apart, because it is slow."""
    random = np.random.default_rng(1)
    bodies_by_form: dict[int | None, bytes] = {}
    gc.collect()
    tracemalloc.start()
    machine, job = planned(partitions)
    seals = [each for each in machine.ended(job, reports(servers, tasks, job), 0.0) if isinstance(each, Seal)]
    before, _ = tracemalloc.get_traced_memory()
    for seal in seals:
        if seal.largest not in bodies_by_form:
            bodies_by_form[seal.largest] = answer(random, partitions, seal.largest)
        tracemalloc.reset_peak()
        machine.answered(seal, json.loads(bodies_by_form[seal.largest]), 0.0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    del seals
    bodies_by_form.clear()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert machine.state(DATASET) is HeldState.SEALED
    return max(before, peak_bytes), held_bytes


def main(options: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks spread --", description=__doc__)
    parser.add_argument("--largest", type=int, default=len(SIZES), help="how many rows of the table")
    given = parser.parse_args(options)
    rows = []
    for size in SIZES[: given.largest]:
        found, (peak_bytes, held_bytes) = measured(*size), memory(*size)
        rows.append(
            [
                *(f"{each:,}" for each in size),
                *(f"{found[f'{each}_seconds']:.3f}" for each in ("seal", "sum", "plan", "release")),
                f"{found['sent_bytes'] / MIB:.2f}",
                f"{found['server_bytes'] / 1024:.1f}",
                f"{found['answer_bytes'] / 1024:.1f}",
                f"{peak_bytes / MIB:.1f}",
                f"{held_bytes / MIB:.1f}",
            ]
        )
    columns = ["servers", "tasks", "partitions", "seal", "sum", "plan", "release"]
    columns += ["MiB sent", "KiB / server", "KiB / answer", "MiB peak", "MiB held"]
    console.print(conditions().partition(";")[0] + "; CPU seconds of the driver, one run")
    table("A dataset on many servers: the driver", columns, rows)
