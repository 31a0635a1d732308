"""Python -> exchange -> Python on local Spark, end to end, against Spark's own shuffle.

    ours    pipeline(df).mapInArrow(first).exchange(16, "key").mapInArrow(second)
    Spark   df.mapInArrow(first).repartition(16, "key").mapInArrow(second)

The same functions and the same data; both count rows and sum a column in the second stage, and the
sums must agree. ``no shuffle`` is ``df.mapInArrow(first).mapInArrow(second)``: what Spark needs to feed
Python twice, without any exchange. ``feed`` is ``df.mapInArrow(first)`` alone, counted in Python: what no
exchange can save. ``unchecked`` is ours without checksums, written and read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_client import ShuffleClient
from spark_client.connection import Reading, Writing
from tests.benchmarks.measure import Subject, conditions, console, measure, ratio, table
from tests.support.spark_session import local_session

PARTITIONS = 16
NARROW_ROWS = 20_000_000
WIDE_ROWS = 1_000_000
WIDTH = 256
Batches = Iterator[pa.RecordBatch]


def narrow_first(batches: Batches) -> Batches:
    """A key, and two columns more than came in."""
    for batch in batches:
        key = batch.column("id")
        twice = pc.multiply(key, 2)
        yield pa.record_batch(
            [key, twice, pc.cast(key, pa.float64()), batch.column("value")], names=["key", "a", "b", "c"]
        )


def wide_first(batches: Batches) -> Batches:
    """A key and a vector of 256 floats, as an embedding would be."""
    for batch in batches:
        rows = batch.num_rows
        values = np.random.default_rng(1).random(rows * WIDTH, dtype=np.float32)
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * WIDTH)
        vectors = pa.ListArray.from_arrays(offsets, pa.array(values))
        yield pa.record_batch([batch.column("id"), vectors], names=["key", "vector"])


def second(batches: Batches) -> Batches:
    """Rows and the sum of the key, per partition."""
    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += pc.sum(batch.column("key")).as_py() or 0
    yield pa.record_batch([pa.array([rows]), pa.array([total])], names=["rows", "total"])


SECOND = "rows long, total long"
JOBS: dict[str, tuple[int, Callable[[Batches], Batches], str, int]] = {
    "20 M rows x 4 columns": (NARROW_ROWS, narrow_first, "key long, a long, b double, c double", 32),
    "1 M rows x 256 floats": (WIDE_ROWS, wide_first, "key long, vector array<float>", 8 + 4 * WIDTH),
}


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="exchange")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows")
    options = parser.parse_args(arguments)
    # Spark's workers are to have what this process has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    console.print(f"[bold]Exchange[/bold] · {conditions(options.rounds)}; local[2], {PARTITIONS} partitions")
    rows: list[list[str]] = []
    with ExitStack() as stack:
        spark = stack.enter_context(local_session("local[2]"))
        shuffle = stack.enter_context(ShuffleClient.embedded())
        unchecked = stack.enter_context(
            ShuffleClient(shuffle.location, reading=Reading(check=False), writing=Writing(check=False))
        )
        for name, (count, first, schema, row_bytes) in JOBS.items():
            rows += _job(
                spark,
                (shuffle, unchecked),
                name,
                int(count * options.scale),
                stage=(first, schema),
                row_bytes=row_bytes,
                rounds=options.rounds,
            )
    table("Python → exchange → Python", ["job", "subject", "seconds", "x Spark"], rows)


def _job(
    spark: Any,
    clients: tuple[ShuffleClient, ShuffleClient],
    name: str,
    count: int,
    *,
    stage: tuple[Callable[[Batches], Batches], str],
    row_bytes: int,
    rounds: int,
) -> list[list[str]]:
    first, schema = stage
    source = spark.range(0, count, 1, 8).selectExpr("id", "cast(id as double) * 0.5 as value")

    def checked(result: Any) -> int:
        found = result.collect()
        assert sum(row.rows for row in found) == count
        assert sum(row.total for row in found) == count * (count - 1) // 2
        return count * row_bytes

    def ours(shuffle: ShuffleClient) -> int:
        result = (
            shuffle.pipeline(source)
            .mapInArrow(first, schema)
            .exchange(PARTITIONS, "key")
            .mapInArrow(second, SECOND)
            .toDF()
        )
        delivered = checked(result)
        shuffle.release(result)
        return delivered

    def sparks() -> int:
        return checked(
            source.mapInArrow(first, schema).repartition(PARTITIONS, "key").mapInArrow(second, SECOND)
        )

    def no_shuffle() -> int:
        return checked(source.mapInArrow(first, schema).mapInArrow(second, SECOND))

    def feed() -> int:
        return checked(source.mapInArrow(lambda batches: second(first(batches)), SECOND))

    peer = Subject("Spark's shuffle", sparks)
    subjects = [
        peer,
        Subject("flight exchange", partial(ours, clients[0])),
        Subject("unchecked", partial(ours, clients[1])),
        Subject("no shuffle", no_shuffle),
        Subject("feed", feed),
    ]
    measure(subjects, rounds)
    return [
        [
            name,
            subject.name,
            f"{subject.median(lambda sample: sample.seconds):.1f}",
            f"{ratio(subject, peer):.2f}",
        ]
        for subject in subjects
    ]
