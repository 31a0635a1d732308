"""A small query in the warm session: what a job costs before its data does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from spark_client import ShuffleClient
from tests.demo.flights import Flights

DEST, PLACE = "HNL", "Honolulu"
AIMED_SECONDS = 1.0
_SUMS = ("flights", "late", "minutes")
_ROWS = "carrier string, flights long, late long, minutes long"
Row = tuple[str, int, int, int]


def by_the_service(spark: SparkSession, client: ShuffleClient, data: Flights) -> list[Row]:
    """Of each carrier to ``DEST`` the flights that arrived, the late ones and the minutes: a Python stage before the
    exchange and one after it.
    """
    rows = (
        client.scan(
            data.flights, columns=["carrier", "arr_delay"], filter=[("dest", "==", DEST)], spark=spark
        )
        .mapInArrow(_arrived, _ROWS)
        .exchange(2, "carrier")
        .mapInArrow(_sums, _ROWS)
        .collect()
        .read_all()
    )
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def by_plain_spark(spark: SparkSession, data: Flights) -> list[Row]:
    """The same by Spark's own aggregation."""
    delay = sql.col("arr_delay")
    found = (
        spark.read.parquet(str(data.flights))
        .where((sql.col("dest") == DEST) & delay.isNotNull())
        .groupBy("carrier")
        .agg(
            sql.count("*"),
            sql.sum(sql.when(delay >= 15, 1).otherwise(0)),
            sql.sum(delay.cast("long")),
        )
    )
    return sorted((row[0], row[1], row[2], row[3]) for row in found.collect())


def seconds_of(run: Callable[[], object], times: int) -> list[float]:
    """How long each of so many runs took."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return taken


def said(rows: list[Row], taken: list[float]) -> str:
    """The answer and the times as text, with whether they are what the demo aims at."""
    answer = "; ".join(f"{row[0]} {row[1]:,} flights, {row[3] / row[1]:+.1f} minutes" for row in rows)
    median, slowest = statistics.median(taken), max(taken)
    held = "below" if slowest < AIMED_SECONDS else "not below"
    return (
        f"A small query in the warm session, flights to {PLACE} by carrier (two Python stages, one exchange): "
        f"{answer}. "
        f"Median of {len(taken)} runs {median:.2f} s, slowest {slowest:.2f} s: {held} {AIMED_SECONDS:.0f} s."
    )


def _arrived(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        arrived = batch.filter(pc.is_valid(batch.column("arr_delay")))
        delay = arrived.column("arr_delay").cast(pa.int64())
        yield pa.record_batch(
            {
                "carrier": arrived.column("carrier"),
                "flights": pa.repeat(pa.scalar(1, pa.int64()), len(arrived)),
                "late": pc.cast(pc.greater_equal(delay, 15), pa.int64()),
                "minutes": delay,
            }
        )


def _sums(batches: Iterator[Any]) -> Iterator[Any]:
    parts = list(batches)
    if parts:
        sums = pa.Table.from_batches(parts).group_by("carrier", use_threads=False)
        found = sums.aggregate([(name, "sum") for name in _SUMS])
        yield from (
            found.select(["carrier", *(f"{name}_sum" for name in _SUMS)])
            .rename_columns(["carrier", *_SUMS])
            .to_batches()
        )
