"""scan -> repartition(16) -> Python stage over 1, 2 and 4 servers of a machine: seconds, and CPU of tasks and servers.

All tasks are on one host, with all servers: what is looked for is the cost of more servers, which have the same cores.
``idle`` is what that many servers use in the same time without a job.

Under the table stands what a host of ``CORES`` cores and ``LINK_GBITS`` would be bound by, if each byte took the CPU
seconds of the table's last row and crossed the network with (n - 1)/n of all bytes, as it does where tasks write to
their own host's server (``on_spark.wire_bytes`` measures that).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_client import ShuffleClient
from tests.benchmarks.measure import GB, Subject, console, measure, ratio, table
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark.engines import Engines, Options, tree_cpu_seconds
from tests.support.server_process import ServerProcess

ROWS = 10_000_000
PARTITIONS = 16
SERVERS = (1, 2, 4)
COLUMNS = [
    "servers",
    "cold s",
    "s",
    "x one",
    "client CPU s/GB",
    "server CPU s/GB",
    "of it idle",
    "MB",
]
IDLE_SECONDS = 5.0
CORES, LINK_GBITS = 16, 25


class _Spread:
    """A client of some servers, with what they took."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        self.servers = [stack.enter_context(ServerProcess.start()) for _ in range(count)]
        self.client = stack.enter_context(ShuffleClient(",".join(each.location for each in self.servers)))
        self.server_cpu_seconds: list[float] = []
        before = self._cpu_seconds()
        time.sleep(IDLE_SECONDS)
        self.idle_share = (self._cpu_seconds() - before) / IDLE_SECONDS
        self.moved_bytes = 0

    def run(self, engines: Engines, rows: int) -> int:
        """The stored bytes of the exchange."""
        before = self._cpu_seconds()
        path = data.named_parquet(rows)
        pipeline = (
            self.client.scan(path, spark=engines.spark)
            .repartition(PARTITIONS, "id")
            .mapInArrow(sums, "n long")
        )
        found = sum(pipeline.toArrow()["n"].to_pylist())
        assert found == rows, f"{found} rows of {rows}"
        done = pipeline.statistics()
        assert done is not None
        self.moved_bytes = done.exchanges[0].size_bytes
        self.server_cpu_seconds.append(self._cpu_seconds() - before)
        return self.moved_bytes

    def _cpu_seconds(self) -> float:
        return sum(each.cpu_seconds() for each in self.servers)


def sums(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a partition, counted; each value is looked at."""
    for batch in batches:
        pc.sum(batch.column("amount"))
        yield pa.record_batch({"n": pa.array([batch.num_rows], pa.int64())})


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("several_servers", arguments)
    rows = int(ROWS * options.scale)
    options.announce("An exchange over several servers")
    with Engines() as engines, ExitStack() as stack:
        spreads = [_Spread(stack, count) for count in SERVERS]
        subjects = [
            Subject(
                f"{len(each.servers)}",
                partial(each.run, engines, rows),
                client_cpu_seconds=partial(_clients_cpu_seconds, spreads),
            )
            for each in spreads
        ]
        measure(subjects, options.rounds)
        table(
            "An exchange over several servers",
            COLUMNS,
            [_row(*each, subjects[0]) for each in zip(subjects, spreads, strict=True)],
        )
        _say_bounds(subjects[-1], spreads[-1])


def _clients_cpu_seconds(spreads: Sequence[_Spread]) -> float:
    """Of this process and all below it, but for the servers."""
    servers = sum(server.cpu_seconds() for spread in spreads for server in spread.servers)
    return tree_cpu_seconds() - servers


def _say_bounds(subject: Subject, spread: _Spread) -> None:
    client, server = _cpu_seconds_per_gb(subject, spread)
    by_cpu = CORES / (client + server)
    for hosts in (2, 4, 16):
        crossing = (hosts - 1) / hosts
        by_link = LINK_GBITS / 8 / crossing
        bound = "CPU" if by_cpu < by_link else "network"
        console.print(
            f"{hosts} hosts of {CORES} cores and {LINK_GBITS} Gbit/s: {by_cpu:.2f} GB/s each by CPU, {by_link:.2f} by "
            f"the network, which {crossing:.2f} of all bytes cross: bound by {bound}"
        )


def _cpu_seconds_per_gb(subject: Subject, spread: _Spread) -> tuple[float, float]:
    """Of the tasks, with Spark and the driver, and of the servers."""
    size_gb = spread.moved_bytes / GB
    client = subject.median(lambda sample: sample.client_cpu_seconds)
    return client / size_gb, statistics.median(spread.server_cpu_seconds[1:]) / size_gb


def _row(subject: Subject, spread: _Spread, one: Subject) -> list[str]:
    assert subject.cold is not None
    client, server = _cpu_seconds_per_gb(subject, spread)
    seconds = subject.median(lambda sample: sample.seconds)
    return [
        subject.name,
        f"{subject.cold.seconds:.2f}",
        f"{seconds:.2f}",
        f"{ratio(subject, one):.2f}",
        f"{client:.2f}",
        f"{server:.2f}",
        f"{spread.idle_share * seconds / (spread.moved_bytes / GB):.2f}",
        f"{spread.moved_bytes / 1e6:.0f}",
    ]
