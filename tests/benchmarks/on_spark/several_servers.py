"""scan -> exchange(16) -> Python stage over 1, 2 and 4 servers of one machine: seconds, and CPU of tasks and servers.

All tasks are on one host, with all servers: what is looked for is the cost of more servers, which have the same cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_client import ShuffleClient
from tests.benchmarks.measure import GB, Subject, cpu_seconds, measure, ratio, table
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark.engines import Engines, Options, tree_cpu_seconds
from tests.support.server_process import ServerProcess

ROWS = 10_000_000
PARTITIONS = 16
SERVERS = (1, 2, 4)
COLUMNS = ["servers", "cold s", "s", "x one", "client CPU s/GB", "server CPU s/GB"]


class _Spread:
    """A client of some servers, with what they took."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        self.servers = [stack.enter_context(ServerProcess.start()) for _ in range(count)]
        self.client = stack.enter_context(ShuffleClient(",".join(each.location for each in self.servers)))
        self.server_cpu_seconds: list[float] = []
        self.moved_bytes = 0

    def run(self, engines: Engines, rows: int) -> int:
        """The stored bytes of the exchange."""
        before = sum(cpu_seconds(each.pid) for each in self.servers)
        path = data.named_parquet(rows)
        pipeline = (
            self.client.scan(path, spark=engines.spark).exchange(PARTITIONS, "id").mapInArrow(sums, "n long")
        )
        found = sum(pipeline.collect().read_all()["n"].to_pylist())
        assert found == rows, f"{found} rows of {rows}"
        done = pipeline.statistics
        assert done is not None
        self.moved_bytes = done.exchanges[0].size_bytes
        self.server_cpu_seconds.append(sum(cpu_seconds(each.pid) for each in self.servers) - before)
        return self.moved_bytes


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


def _clients_cpu_seconds(spreads: Sequence[_Spread]) -> float:
    """Of this process and all below it, but for the servers."""
    servers = sum(cpu_seconds(server.pid) for spread in spreads for server in spread.servers)
    return tree_cpu_seconds() - servers


def _row(subject: Subject, spread: _Spread, one: Subject) -> list[str]:
    assert subject.cold is not None
    size_gb = spread.moved_bytes / GB
    return [
        subject.name,
        f"{subject.cold.seconds:.2f}",
        f"{subject.median(lambda sample: sample.seconds):.2f}",
        f"{ratio(subject, one):.2f}",
        f"{subject.median(lambda sample: sample.client_cpu_seconds) / size_gb:.2f}",
        f"{statistics.median(spread.server_cpu_seconds[1:]) / size_gb:.2f}",
    ]
