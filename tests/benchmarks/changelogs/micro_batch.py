"""A stream joined to a table, 1,000 rows in a micro-batch: Spark's broadcast join against ``lookup``.

Both have the same stream, Spark's own source ``rate-micro-batch``, and the sink ``noop``. Each micro-batch follows the
one before at once. ``trigger ms`` is Spark's own figure of the whole trigger, ``durationMs.triggerExecution``; medians
over the micro-batches after the first ``--warm-up``, which start Python workers and, in ``lookup``, fetch the table.

    no join          the stream alone: what a trigger takes without any table
    Spark            ``stream.join(broadcast(table), "key", "left")``, the table in Parquet files
    lookup           ``shuffle.lookup(stream, table, on="key")``, the table in a changelog
    lookup, 1 %      the same while a hundredth of the table is put anew before each micro-batch. Each then begins
                     ``--interval`` seconds after the one before, so that the put has ended. Spark's join does not see
                     such changes: it is compared with ``Spark``, as if it did for nothing

All of them have run with a table of 1,000 rows before, in the same JVM. ``first ms`` is the query's first trigger, in
which ``lookup`` starts Python workers and fetches the table; ``transfer ms`` is what the driver takes to read the table
from the server and to keep nothing of it. ``KiB fetched`` is what the server has sent per measured micro-batch.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as sql

from spark_client import latest
from spark_client.lookup import Lookups
from spark_client.lookup.lookup_content import LookupContent
from tests.benchmarks.measure import conditions, console, table
from tests.benchmarks.on_spark.engines import Engines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZES = (100_000, 1_000_000, 4_000_000, 10_000_000)
BATCH_ROWS = 1000
CHANGED = 0.01
FILES = 4
DEADLINE_SECONDS = 600.0
WARMING = {"batches": 4, "warm_up": 1, "interval": 1.0}
POLL_SECONDS = 0.02
# A prime that divides no size: the keys of a micro-batch are all over the table.
STRIDE = 7919
SCHEMA = pa.schema(
    [("key", pa.int64()), ("time", pa.int64()), ("price", pa.float64()), ("name", pa.string())]
)
COLUMNS = [
    "rows",
    "subject",
    "trigger ms",
    "first ms",
    "transfer ms",
    "KiB fetched",
]


@dataclass(frozen=True)
class Measured:
    """One subject at one size."""

    trigger_ms: list[float]
    first_ms: float
    transfer_ms: float | None = None
    fetched_bytes: float | None = None


def rows_of(keys: Any, time_: int) -> pa.Table:
    """These keys' rows."""
    numbers = np.asarray(keys)
    names = pa.array([f"name-{number:04}" for number in range(1000)])
    columns = [
        numbers,
        np.full(len(numbers), time_),
        numbers * 0.5 + time_,
        names.take(pa.array(numbers % 1000)),
    ]
    return pa.table(columns, schema=SCHEMA)


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="micro_batch")
    parser.add_argument("--batches", type=int, default=20, help="that are measured")
    parser.add_argument("--warm-up", type=int, default=5, help="micro-batches before these")
    parser.add_argument(
        "--interval", type=float, default=3.0, help="seconds between micro-batches with changes"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the table's rows")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="the table's rows")
    parser.add_argument(
        "--only", nargs="+", default=(), help="subjects with one of these words in their names"
    )
    options = parser.parse_args(arguments)
    console.print(
        f"[bold]Micro-batches[/bold] · {conditions(1)}; {BATCH_ROWS:,} rows each, median of {options.batches} after "
        f"{options.warm_up}; local[2]"
    )
    found: list[list[str]] = []
    with Engines() as engines:
        _of_size(engines, BATCH_ROWS, argparse.Namespace(**vars(options) | WARMING))
        for size in options.sizes:
            found += _of_size(engines, max(BATCH_ROWS, int(size * options.scale)), options)
    table("A stream joined to a table", COLUMNS, found)


def _of_size(engines: Engines, size: int, options: argparse.Namespace) -> list[list[str]]:
    subjects: dict[str, Callable[[], Measured]] = {
        "no join": lambda: _measured(_stream(engines, size), options),
        "Spark": partial(_spark, engines, size, options),
        "lookup": partial(_lookup, engines, size, options, changing=False),
        "lookup, 1 %": partial(_lookup, engines, size, options, changing=True),
    }
    measured: dict[str, Measured] = {}
    for name, run in subjects.items():
        if not options.only or any(word in name for word in options.only):
            engines.renew()
            measured[name] = run()
    return [_row(size, name, each) for name, each in measured.items()]


def _row(size: int, name: str, of: Measured) -> list[str]:
    return [
        f"{size:,}",
        name,
        f"{statistics.median(of.trigger_ms):.0f}",
        f"{of.first_ms:.0f}",
        "" if of.transfer_ms is None else f"{of.transfer_ms:.0f}",
        "" if of.fetched_bytes is None else f"{of.fetched_bytes / 1024:.1f}",
    ]


def _spark(engines: Engines, size: int, options: argparse.Namespace) -> Measured:
    with tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-") as directory:
        for number in range(FILES):
            pq.write_table(rows_of(np.arange(number, size, FILES), 0), Path(directory, f"{number}.parquet"))
        static = engines.spark.read.parquet(directory)
        joined = _stream(engines, size).join(sql.broadcast(static), "key", "left")
        return _measured(joined, options)


def _lookup(engines: Engines, size: int, options: argparse.Namespace, *, changing: bool) -> Measured:
    changelog = engines.shuffle.changelog("table", SCHEMA, key="key", order_by="time", keep=latest())
    changelog.put(rows_of(np.arange(size), 0))
    with _noted_contents() as contents:
        joined = engines.shuffle.lookup(_stream(engines, size), "table", on="key")
    sent: list[int] = []

    def after(number: int) -> None:
        if number in (options.warm_up, options.warm_up + options.batches):
            sent.append(int(engines.shuffle.statistics()["bytes_out"]))
        if changing:
            keys = np.random.default_rng(number).choice(size, max(1, int(size * CHANGED)), replace=False)
            changelog.put(rows_of(keys, number))

    started = time.perf_counter()
    with contents[0].source.snapshot(changelog.upper) as batches:
        for _ in batches:
            pass
    transfer_ms = (time.perf_counter() - started) * 1e3
    measured = _measured(joined, options, after, options.interval if changing else None)
    return replace(
        measured,
        transfer_ms=transfer_ms,
        fetched_bytes=(sent[1] - sent[0]) / options.batches,
    )


def _stream(engines: Engines, size: int) -> DataFrame:
    """``key`` and ``id``, ``BATCH_ROWS`` in each micro-batch."""
    rate = engines.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS)
    return rate.load().select((sql.col("value") * STRIDE % size).alias("key"), sql.col("value").alias("id"))


def _measured(
    joined: DataFrame,
    options: argparse.Namespace,
    after: Callable[[int], None] = lambda _: None,
    interval_seconds: float | None = None,
) -> Measured:
    """Run the query. ``after`` is called when so many triggers have ended."""
    wanted, found = options.warm_up + options.batches, dict[int, float]()
    with tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-") as checkpoint:
        writer = joined.writeStream.format("noop").option("checkpointLocation", checkpoint)
        if interval_seconds is not None:
            writer = writer.trigger(processingTime=f"{int(interval_seconds * 1000)} milliseconds")
        query = writer.start()
        try:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while len(found) < wanted:
                if time.monotonic() > deadline or query.exception() is not None:
                    raise RuntimeError(
                        f"{len(found)} of {wanted} micro-batches: {query.exception() or 'too slow'}"
                    )
                progress = query.lastProgress
                if progress and progress["numInputRows"] == BATCH_ROWS and progress["batchId"] not in found:
                    found[progress["batchId"]] = float(progress["durationMs"]["triggerExecution"])
                    after(len(found))
                time.sleep(POLL_SECONDS)
        finally:
            query.stop()
    triggers = [found[batch] for batch in sorted(found)]
    return Measured(triggers[options.warm_up : wanted], triggers[0])


@contextlib.contextmanager
def _noted_contents() -> Iterator[list[LookupContent]]:
    """The contents of the lookups that are made in the block."""
    found: list[LookupContent] = []
    make = Lookups._content

    def noted(*arguments: Any) -> LookupContent:
        found.append(make(*arguments))
        return found[-1]

    with mock.patch.object(Lookups, "_content", noted):
        yield found
